// Numbers rounded to halves after they were multiplied with powers of two, for conv/gemm_gpu/halo.cl and round.cl.

#define LARGEST 14  // exponent of the largest number
#define LAST 120    // largest exponent of a power: 1 / it is no denormal number

// Two numbers rounded to halves; the first one is in the lower bits.
uint halves_of(const float first, const float second) {
#if EMULATED
    ushort2 bits;
    vstore_half2_rte((float2)(first, second), 0, (half *)&bits);
    return as_uint(bits);
#else
    uint bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
    return bits;
#endif
}

uint4 rounded(const float *values, const float power) {
    return (uint4)(halves_of(values[0] * power, values[1] * power), halves_of(values[2] * power, values[3] * power),
                   halves_of(values[4] * power, values[5] * power), halves_of(values[6] * power, values[7] * power));
}

// The larger one of `bits`, a number's, and those of another number, if that is finite.
uint larger(const uint bits, const float value) {
    const uint other = as_uint(value) & 0x7fffffffu;
    return other < 0x7f800000u ? max(bits, other) : bits;
}

// The exponent of the power that gives the number with such bits the exponent `to`, at most LAST; 0 for 0.
int exponent_for(const uint bits, const int to) { return bits ? min(to + 127 - (int)(bits >> 23), LAST) : 0; }

float power_of(const int exponent) { return as_float((uint)(127 + exponent) << 23); }
