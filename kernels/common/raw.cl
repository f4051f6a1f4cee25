// Elements as memory has them, for what is read long before its use: a conversion right after a load waits for it.
//
// REAL_OF(bits)  the number that one stands for. Bits must have been set: compilers take that for granted of what is
//                handed to a function
// slot           a register for one element, or for two neighbours of 16 bits: what is read in branches stays in such
//                registers until the branches end, because to take neighbours apart is to wait for them
// REAL_IN        (slot, number) of two neighbours, the first or the second: an even or an odd number
// raw_quad       four neighbours: two slots (16 bits) or four
#if STORAGE == 16
#if !defined(BRAIN) && !defined(PTX)
SMALL_NUMBERS()
#endif
typedef ushort raw;
typedef uint slot;
typedef uint2 raw_quad;
#define REAL_OF(bits) widen(bits)
#ifdef BRAIN
#define REAL_IN(slot, number) as_float((number) % 2 ? (slot)&0xffff0000u : (slot) << 16)
#else
#define REAL_IN(slot, number) widen((number) % 2 ? as_ushort2(slot).y : as_ushort2(slot).x)
#endif
#elif STORAGE == 64
typedef double raw;
typedef double slot;
typedef double4 raw_quad;
#define REAL_OF(bits) (bits)
#else
typedef float raw;
typedef float slot;
typedef float4 raw_quad;
#define REAL_OF(bits) (bits)
#endif
#define LOAD_RAW(p, i) (((global const raw *)(p))[i])

#if defined(VL) && VL == 4
// Of four neighbours at p, at any address: as memory has them, and their numbers.
#if STORAGE == 16
raw_quad gather_quad(global const stored *p) {
    return (raw_quad)(LOAD_RAW(p, 0) | (uint)LOAD_RAW(p, 1) << 16, LOAD_RAW(p, 2) | (uint)LOAD_RAW(p, 3) << 16);
}
realv reals_of(const raw_quad bits) {
    return (realv)(REAL_IN(bits.x, 0), REAL_IN(bits.x, 1), REAL_IN(bits.y, 0), REAL_IN(bits.y, 1));
}
#define REALS_OF(bits) reals_of(bits)
#else
#define gather_quad(p) vload4(0, p)
#define REALS_OF(bits) (bits)
#endif
#define RAW_VECTOR_AT(p) \
    ((ulong)(p) % sizeof(raw_quad) == 0 ? *(global const raw_quad *)(p) : gather_quad(p))
#endif
