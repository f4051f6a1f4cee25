// The source of a convolution of few channels on CPU devices: lines in local memory, with the padding.

#include "conv/gemm_cpu/panel.cl"

// Copies rows [first, first + count) of a plane of (ih, iw) after `before` zeros into rows of `pitch` elements, a
// multiple of VL; what lies outside of the plane is zero.
void fill_lines(local real *lines, global const stored *plane, const int first, const int count, const int pitch,
                const int before, const int ih, const int iw) {
    const int begin = min(before, pitch), length = min(iw, pitch - begin), end = begin + length;
    for (int r = 0; r < count; r++) {
        local real *to = lines + r * pitch;
        const int h = first + r;
        if (h < 0 || h >= ih) {
            for (int i = 0; i < pitch; i += VL) STORE_REALS(to + i, (realv)(0));
            continue;
        }
        global const stored *row = plane + (long)h * iw;
        for (int i = 0; i < begin; i++) to[i] = 0;
        COPY_PIECE(length, STORE_REALS(to + begin + i, VLOAD(row, i)), to[begin + i] = LOAD(row, i))
        for (int i = end; i < pitch; i++) to[i] = 0;
    }
}
