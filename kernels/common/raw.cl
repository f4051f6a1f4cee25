// Elements as memory has them, for what is read long before its use: a conversion right after a load waits for it.
//
// RAW_QUAD       four of them
// REAL_OF(bits)  the number that one stands for
#if STORAGE == 16
#ifndef BRAIN
SMALL_NUMBERS()
#endif
typedef ushort raw;
#define RAW_QUAD ushort4
#define REAL_OF(bits) widen(bits)
#elif STORAGE == 64
typedef double raw;
#define RAW_QUAD double4
#define REAL_OF(bits) (bits)
#else
typedef float raw;
#define RAW_QUAD float4
#define REAL_OF(bits) (bits)
#endif
#define LOAD_RAW(p, i) (((global const raw *)(p))[i])
