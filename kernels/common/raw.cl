// Elements as memory has them, for what is read long before its use: a conversion right after a load waits for it.
//
// RAW_QUAD       four of them
// REAL_OF(bits)  the number that one stands for. Bits must have been set: compilers take that for granted of what is
//                handed to a function
// PTX            1: the compiler takes NVIDIA's assembly
#if STORAGE == 16
#if !defined(BRAIN) && defined(PTX)
// One instruction each. What the compiler makes of vload_half and vstore_half in private memory is its own matter.
float widen(const ushort bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
ushort narrow(const float value) {
    ushort bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#elif !defined(BRAIN)
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
