/* What the machine can do at most, for benchmarks: multiply-adds in registers, and a copy.

   `fma_chains`: each work-item keeps CHAINS independent sums of a vector each, so that the latency of a multiply-add
   is hidden, and does `rounds` multiply-adds on each. The sums are written, so that nothing can be left out.
   `copy_lines`: a work-item copies `vectors` vectors in a row.
   `nothing`: what a launch costs. */

#ifndef WIDTH
#define WIDTH 16  // floats of a vector: 2 to 16
#endif
#ifndef CHAINS
#define CHAINS 12
#endif

#define JOIN_(name, width) name##width
#define JOIN(name, width) JOIN_(name, width)
#define VECTOR JOIN(float, WIDTH)
#define READ JOIN(vload, WIDTH)
#define WRITE JOIN(vstore, WIDTH)

kernel void fma_chains(global float *sums, const float factor, const int rounds) {
    VECTOR chain[CHAINS];
    for (int i = 0; i < CHAINS; ++i) chain[i] = (VECTOR)(0.5f + i + get_global_id(0));
    const VECTOR by = (VECTOR)(factor), plus = (VECTOR)(1.0f - factor);
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int i = 0; i < CHAINS; ++i) chain[i] = fma(chain[i], by, plus);
    }
    VECTOR sum = (VECTOR)(0.0f);
    for (int i = 0; i < CHAINS; ++i) sum += chain[i];
    WRITE(sum, get_global_id(0), sums);
}

kernel void copy_lines(global const float *from, global float *to, const int vectors) {
    const size_t first = get_global_id(0) * vectors;
    for (int i = 0; i < vectors; ++i) WRITE(READ(first + i, from), first + i, to);
}

kernel void nothing(const int unused) {}
