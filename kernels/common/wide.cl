// WIDE neighbouring elements of a tensor, on GPUs; `quads` says whether the address allows one load or store. They are
// read as memory has them (common/raw.cl), so that many reads are on their way before the first one is converted.
#include "pointwise/value.cl"
#include "pointwise/quads.cl"

#ifndef WIDE
#define WIDE 4  // 4 or 1, and in 16 bits 8
#endif
#define WIDTH _Pragma("unroll") for (int e = 0; e < WIDE; e++)

#if WIDE == 8
#define WIDE_ALIGNED(p) (((ulong)(p) & 15) == 0)
#else
#define WIDE_ALIGNED(p) QUAD_ALIGNED_stored(p)
#endif

void read_wide(raw *to, global const stored *from, const bool quads) {
#if WIDE == 8
    if (quads) {
        const uint4 both = *(global const uint4 *)from;
        to[0] = both.x;
        to[1] = both.y;
        to[4] = both.z;
        to[5] = both.w;
    } else {
        GATHER_RAWS_stored(to, from)
        GATHER_RAWS_stored(to + 4, from + 4)
    }
#elif WIDE == 4
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
#if WIDE == 8
    NUMBERS_stored(to, from, true)
    NUMBERS_stored(to + 4, from + 4, true)
#elif WIDE == 4
    NUMBERS_stored(to, from, true)
#else
    to[0] = REAL_OF(from[0]);
#endif
}

void write_wide(global stored *to, const real *from, const bool quads, const int accumulate) {
#if WIDE == 8
    if (quads && !accumulate) {
#if defined(BRAIN) || defined(PTX)
        const ushort4 low = narrow4((float4)(from[0], from[1], from[2], from[3])),
                      high = narrow4((float4)(from[4], from[5], from[6], from[7]));
        *(global uint4 *)to = (uint4)(as_uint2(low), as_uint2(high));
#else
        vstorea_half8_rte((float8)(from[0], from[1], from[2], from[3], from[4], from[5], from[6], from[7]), 0, to);
#endif
        return;
    }
#elif WIDE == 4
    if (quads && !accumulate) {
        WRITE_QUAD_stored(to, from)
        return;
    }
#endif
    WIDTH STORE(to, e, accumulate ? LOAD(to, e) + from[e] : from[e]);
}
