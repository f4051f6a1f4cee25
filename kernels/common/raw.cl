// Elements as memory has them, for what is read long before its use: a conversion right after a load waits for it.
//
// raw              a register for one element, or for two neighbours of 16 bits. It has 32 bits: compilers put two
//                  numbers of 16 bits into one register, or take neighbours apart, where a branch ends or registers
//                  are few, and wait for their loads there
// REAL_OF(bits)    the number of one element. Bits must have been set: compilers take that for granted of what is
//                  handed to a function
// REAL_IN(bits, i) of two neighbours, the first one's if i is even, else the second one's
// raw_quad         four neighbours: two registers (16 bits) or four
#if STORAGE == 16
#if !defined(BRAIN) && !defined(PTX)
SMALL_NUMBERS()
#endif
typedef uint raw;
typedef uint2 raw_quad;
#define LOAD_RAW(p, i) ((raw)((global const ushort *)(p))[i])
#define REAL_OF(bits) widen(bits)
#ifdef BRAIN
#define REAL_IN(bits, i) as_float((i) % 2 ? (bits) & 0xffff0000u : (bits) << 16)
#elif defined(PTX)
#define REAL_IN(bits, i) ((i) % 2 ? widen_high(bits) : widen(bits))
#else
#define REAL_IN(bits, i) widen((i) % 2 ? as_ushort2(bits).y : as_ushort2(bits).x)
#endif
#else
#if STORAGE == 64
typedef double raw;
typedef double4 raw_quad;
#else
typedef float raw;
typedef float4 raw_quad;
#endif
#define LOAD_RAW(p, i) (((global const raw *)(p))[i])
#define REAL_OF(bits) (bits)
#endif

#if defined(VL) && VL == 4
// Of four neighbours at p, at any address: as memory has them, and their numbers.
#if STORAGE == 16
raw_quad gather_quad(global const stored *p) {
    return (raw_quad)(LOAD_RAW(p, 0) | LOAD_RAW(p, 1) << 16, LOAD_RAW(p, 2) | LOAD_RAW(p, 3) << 16);
}
realv reals_of(const raw_quad bits) {
    return (realv)(REAL_IN(bits.x, 0), REAL_IN(bits.x, 1), REAL_IN(bits.y, 0), REAL_IN(bits.y, 1));
}
#define REALS_OF(bits) reals_of(bits)
#else
#define gather_quad(p) vload4(0, p)
#define REALS_OF(bits) (bits)
#endif
#define RAW_VECTOR_AT(p) ((ulong)(p) % sizeof(raw_quad) == 0 ? *(global const raw_quad *)(p) : gather_quad(p))
#endif
