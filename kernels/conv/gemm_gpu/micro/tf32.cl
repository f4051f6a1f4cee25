// Numbers of TF32: float32 with the upper 11 bits of the fraction, for micro kernels on matrix units.

// The bits of a number rounded to TF32.
uint tf32_of(const float x) {
#if EMULATED
    return isnan(x) ? as_uint(x) : (as_uint(x) + 0x1000u) & 0xffffe000u;
#else
    uint bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
#endif
}

// The bits of the nearest number that TF32 has, and the rest. The units ignore the last 13 bits of what they get.
// What rounds to infinity becomes TF32's largest number, with an infinite rest if it is infinite: products of an
// infinity and a rest of zero would be NaN.
uint high_of(const float x) {
    const uint rounded = (as_uint(x) + 0x1000u) & 0xffffe000u;
    return fabs(as_float(rounded)) == INFINITY ? rounded - 0x2000u : rounded;
}
#define LOW_OF(x) ((x) - as_float(high_of(x)))
