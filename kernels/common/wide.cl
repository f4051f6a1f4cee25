// WIDE neighbouring elements of a tensor, on GPUs; `quads` says whether the address allows one load or store. They are
// read as memory has them (common/raw.cl), so that many reads are on their way before the first one is converted.
#include "pointwise/value.cl"
#include "pointwise/quads.cl"

#ifndef WIDE
#define WIDE 4  // 4 or 1
#endif
#define WIDTH _Pragma("unroll") for (int e = 0; e < WIDE; e++)

void read_wide(raw *to, global const stored *from, const bool quads) {
#if WIDE == 4
    if (quads) {
        READ_RAWS_stored(to, from)
    } else {
        GATHER_RAWS_stored(to, from)
    }
#else
    to[0] = LOAD_RAW(from, 0);
#endif
}

// The numbers that were read.
void take_wide(real *to, const raw *from) {
#if WIDE == 4
    NUMBERS_stored(to, from, true)
#else
    to[0] = REAL_OF(from[0]);
#endif
}

void write_wide(global stored *to, const real *from, const bool quads, const int accumulate) {
#if WIDE == 4
    if (quads && !accumulate) {
        WRITE_QUAD_stored(to, from)
        return;
    }
#endif
    WIDTH STORE(to, e, accumulate ? LOAD(to, e) + from[e] : from[e]);
}
