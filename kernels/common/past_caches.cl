// Vectors stored past the caches: a line that is overwritten as a whole need not be read from memory first. `p` is of
// type `stored` (or `real`) and has to hold vectors at addresses that their size divides, which ON_VECTORS tells.
#define ON_VECTORS(p) (((ulong)(p) & (VL * sizeof(*(p)) - 1)) == 0)
#define PAST_real(p, i, value) __builtin_nontemporal_store((value), (global realv *)((p) + (i)))
#if STORAGE == 16
// Zero, which compilers do not know: vectors of __bf16 they would store as such, for which LLVM has no such store.
#if PAIRED == 3
#define KEPT_WHOLE (CAT(ushort, VL))((ushort)(get_work_dim() >> 8))
#else
#define KEPT_WHOLE (CAT(ushort, VL))(0)
#endif
void store_small_past(global stored *p, const realv value) {
    const CAT(ushort, VL) bits = CAT(narrow, VL)(value) | KEPT_WHOLE;
    __builtin_nontemporal_store(bits, (global CAT(ushort, VL) *)p);
}
#define PAST_stored(p, i, value) store_small_past((p) + (i), (value))
#else
#define PAST_stored(p, i, value) PAST_real(p, i, value)
#endif
