// WIDE neighbouring channels of a pixel, on GPUs, as numbers; see common/wide.cl.
#include "common/wide.cl"

void read_channels(real *to, global const stored *from, const bool quads) {
    raw held[WIDE];
    read_wide(held, from, quads);
    take_wide(to, held);
}
