// WIDE neighbouring channels of a pixel, on GPUs, as numbers; see common/wide.cl.
#include "common/wide.cl"

void read_channels(real *to, global const stored *from, const bool quads) {
    raw bits[WIDE];
    read_wide(bits, from, quads);
    WIDTH to[e] = REAL_OF(bits[e]);
}
