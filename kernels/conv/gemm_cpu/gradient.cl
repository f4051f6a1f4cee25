// The gradient of a convolution's results, or the pixels of its source, as its backward filter on CPU devices reads
// them: [pixel][COLS channels].
//
// STRIDE  elements from a pixel to the next one

#include "common/amx.cl"
#include "common/register_tile.cl"
#include "conv/gemm_cpu/apart.cl"

#ifndef STRIDE
#define STRIDE 1
#endif
#define MOST_ASKED (STRIDE < 4 ? STRIDE : 4)  // vectors that a vector of pixels is asked for with

// to[pixel / NUMBERS][lane] = dy[lane][pixel * STRIDE] for count pixels of one image and VL lanes, of which the first
// `lanes` exist. The first pixel is pixel `begin` of the block. Less than VL operands more are written; `left` elements
// may be read from dy on.
#if PAIRED
#define PANEL_OPERAND(p) OPERAND_AT(p, 0)

void transpose_pixels(local operand *to, const int begin, global const stored *dy, const long row_size, const long left,
                      const int lanes, const int count) {
    local ushort *pixels = (local ushort *)to;
    for (int at = 0; at < count;) {
        const int pixel = begin + at;
        if (pixel % 2 == 0 && (lanes - 1) * row_size + at + 2 * VL <= left) {
            operandv a[VL], b[VL];
#pragma unroll
            for (int i = 0; i < VL; i++) {
                __builtin_prefetch(dy + (VL + i) * row_size + at);  // for the next lanes
                a[i] = OPERANDS_AT(dy + min(i, lanes - 1) * row_size + at, 0);
            }
            TRANSPOSE(a, b, VL)
#pragma unroll
            for (int i = 0; i < VL; i++) STORE_OPERANDS(to + (pixel / 2 + i) * COLS, a[i]);
            at += 2 * VL;
            continue;
        }
        for (int i = 0; i < VL; i++)
            pixels[(pixel / 2 * COLS + i) * 2 + pixel % 2] = i < lanes ? dy[i * row_size + at] : 0;
        at++;
    }
}

// Sets the second pixel of the last pair to zero where the number of pixels is odd, and with AMX the last steps.
void end_pixels(local operand *to, const int count) {
#if AMX
    for (int k = (count + 1) / 2; k < WHOLE_BLOCKS((count + 1) / 2); k++) STORE_OPERANDS(to + k * COLS, (operandv)(0));
#endif
    for (int i = 0; count % 2 && i < VL; i++) to[count / 2 * COLS + i] &= 0xffffu;
}
#else
#define PANEL_OPERAND(p) (*(p))

void transpose_pixels(local operand *block, const int begin, global const stored *dy, const long row_size,
                      const long left, const int lanes, const int count) {
    local real *to = block + begin * COLS;
    int at = 0;
    for (; at < count && (lanes - 1) * row_size + (at + VL) * STRIDE <= left; at += VL) {
        realv a[VL], b[VL];
#pragma unroll
        for (int i = 0; i < VL; i++) {
#pragma unroll
            for (int v = 0; v < MOST_ASKED; v++)
                __builtin_prefetch(dy + (VL + i) * row_size + at * STRIDE + v * VL);  // for the next lanes
            a[i] = load_apart(dy + min(i, lanes - 1) * row_size + at * STRIDE, STRIDE);
        }
        TRANSPOSE(a, b, VL)
#pragma unroll
        for (int i = 0; i < VL; i++) STORE_REALS(to + (at + i) * COLS, a[i]);
    }
    for (; at < count; at++) {
        for (int i = 0; i < VL; i++) to[at * COLS + i] = i < lanes ? LOAD(dy, i * row_size + at * STRIDE) : 0;
    }
}
#endif
