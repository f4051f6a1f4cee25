// Vectors stored past the caches: a line that is overwritten as a whole need not be read from memory first. `p` is of
// type `stored` (or `real`) and has to hold vectors at addresses that their size divides, which ON_VECTORS tells.
#define ON_VECTORS(p) (((ulong)(p) & (VL * sizeof(*(p)) - 1)) == 0)
#define PAST_real(p, i, value) __builtin_nontemporal_store((value), (global realv *)((p) + (i)))
#if STORAGE == 16
void store_halves_past(global half *p, const realv value) {
    CAT(ushort, VL) bits;
    CAT(CAT(vstore_half, VL), _rte)(value, 0, (half *)&bits);
    __builtin_nontemporal_store(bits, (global CAT(ushort, VL) *)p);
}
#define PAST_stored(p, i, value) store_halves_past((p) + (i), (value))
#else
#define PAST_stored(p, i, value) PAST_real(p, i, value)
#endif
