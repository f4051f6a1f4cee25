// Numbers of 16 bits by instructions of PTX, in place of those of common/prelude.cl: the compiler makes far more of
// vstore_half and of the bits of bfloat16.
//
// PTX  the device's compute capability, times 10: from 80 on, one instruction rounds two numbers. 1 if it is not known

// widen takes the lower half of its bits.
#ifdef BRAIN
float widen(const uint bits) { return as_float(bits << 16); }
float2 widen_pair(const uint bits) { return (float2)(as_float(bits << 16), as_float(bits & 0xffff0000u)); }
#else
float widen(const uint bits) {
    float value;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(value) : "r"(bits));
    return value;
}
float widen_high(const uint bits) {
    float value;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high;}" : "=f"(value) : "r"(bits));
    return value;
}
float2 widen_pair(const uint bits) { return (float2)(widen(bits), widen_high(bits)); }
#endif

#ifdef BRAIN
#define SMALL_TYPE "bf16"
#else
#define SMALL_TYPE "f16"
#endif
#if defined(BRAIN) && PTX < 80
BRAIN_NARROW()
#else
ushort narrow(const float value) {
    ushort bits;
    asm("cvt.rn." SMALL_TYPE ".f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif
#if PTX >= 80
uint narrow_pair(const float low, const float high) {
    uint bits;
    asm("cvt.rn." SMALL_TYPE "x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
#else
uint narrow_pair(const float low, const float high) { return narrow(low) | (uint)narrow(high) << 16; }
#endif

// 1 / value, within an ulp of float32.
float reciprocal(const float value) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

// Of two pairs: the bits of each half, all of them where its numbers are equal.
#if (defined(BRAIN) && PTX >= 90) || (!defined(BRAIN) && PTX >= 60)
#define HAS_EQUAL_PAIR
uint equal_pair(const uint a, const uint b) {
    uint mask;
    asm("set.eq.u32." SMALL_TYPE "x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
    return mask;
}
#endif

float2 widen2(const ushort2 bits) { return widen_pair(as_uint(bits)); }
float4 widen4(const ushort4 bits) { return (float4)(widen2(bits.lo), widen2(bits.hi)); }
float8 widen8(const ushort8 bits) {
    const uint4 pairs = as_uint4(bits);
    return (float8)(widen_pair(pairs.x), widen_pair(pairs.y), widen_pair(pairs.z), widen_pair(pairs.w));
}
float16 widen16(const ushort16 bits) { return (float16)(widen8(bits.lo), widen8(bits.hi)); }
ushort2 narrow2(const float2 value) { return as_ushort2(narrow_pair(value.x, value.y)); }
ushort4 narrow4(const float4 value) {
    return as_ushort4((uint2)(narrow_pair(value.x, value.y), narrow_pair(value.z, value.w)));
}
ushort8 narrow8(const float8 value) {
    return as_ushort8((uint4)(narrow_pair(value.s0, value.s1), narrow_pair(value.s2, value.s3),
                              narrow_pair(value.s4, value.s5), narrow_pair(value.s6, value.s7)));
}
ushort16 narrow16(const float16 value) { return (ushort16)(narrow8(value.lo), narrow8(value.hi)); }
