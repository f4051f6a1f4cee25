// Four neighbouring elements at once, on GPUs: one load or store of 16 bytes (float), of 8 (16 bits), or two (double).
//
// READ_QUAD_kind(to, p)    to[0] to to[3] from p on; WRITE_QUAD_kind(p, from) the other way round
// QUAD_ALIGNED_kind(p)     whether p allows that
//
// What is read in branches stays as memory has it until the branches end (common/raw.cl): a conversion in one waits for
// its load, and so does the next load. Four registers, of type RAW_kind, hold four neighbours, or two hold them in 16
// bits.
//
// READ_RAWS_kind(to, p)             four elements from p on, together
// GATHER_RAWS_kind(to, p)           the same at any address: a wait for them in 16 bits
// READ_RAW_kind(p, i)               returns one, for a register of its own
// NUMBERS_kind(to, from, together)  to[0] to to[3] of four that were read together, or each by itself
// NUMBER_kind(bits)                 the number of one that was read by itself
#include "common/raw.cl"

#define TAKE_QUAD(to, quad) \
    (to)[0] = (quad).x;     \
    (to)[1] = (quad).y;     \
    (to)[2] = (quad).z;     \
    (to)[3] = (quad).w;
#if STORAGE == 64
#define READ_QUAD_real(to, p)                                                                        \
    {                                                                                                \
        const double2 low = *(global const double2 *)(p), high = *(global const double2 *)((p) + 2); \
        (to)[0] = low.x;                                                                             \
        (to)[1] = low.y;                                                                             \
        (to)[2] = high.x;                                                                            \
        (to)[3] = high.y;                                                                            \
    }
#define WRITE_QUAD_real(p, from)                                        \
    {                                                                   \
        *(global double2 *)(p) = (double2)((from)[0], (from)[1]);       \
        *(global double2 *)((p) + 2) = (double2)((from)[2], (from)[3]); \
    }
#else
#define READ_QUAD_real(to, p)                            \
    {                                                    \
        const float4 quad = *(global const float4 *)(p); \
        TAKE_QUAD(to, quad)                              \
    }
#define WRITE_QUAD_real(p, from) *(global float4 *)(p) = (float4)((from)[0], (from)[1], (from)[2], (from)[3]);
#endif
#define QUAD_ALIGNED_real(p) (((ulong)(p) & 15) == 0)
// Pairs and quads of reals in local memory, at multiples of their size.
#if STORAGE == 64
typedef double2 real_pair;
typedef double4 real_quad;
#else
typedef float2 real_pair;
typedef float4 real_quad;
#endif
#define PUT_QUAD(p, from) *(local real_quad *)(p) = (real_quad)((from)[0], (from)[1], (from)[2], (from)[3]);

#if STORAGE == 16
#if defined(BRAIN) || defined(PTX)
#if !defined(VL) || VL != 4
SMALL_NUMBERS(4)
#endif
#define LOAD_QUAD(p) widen4(as_ushort4(*(global const uint2 *)(p)))
#define STORE_QUAD(p, value) (*(global uint2 *)(p) = as_uint2(narrow4(value)))
#else
#define LOAD_QUAD(p) vloada_half4(0, (p))
#define STORE_QUAD(p, value) vstorea_half4_rte((value), 0, (p))
#endif
#define READ_QUAD_stored(to, p)           \
    {                                     \
        const float4 quad = LOAD_QUAD(p); \
        TAKE_QUAD(to, quad)               \
    }
#define WRITE_QUAD_stored(p, from) STORE_QUAD(p, (float4)((from)[0], (from)[1], (from)[2], (from)[3]));
#define QUAD_ALIGNED_stored(p) (((ulong)(p) & 7) == 0)
#else
#define READ_QUAD_stored(to, p) READ_QUAD_real(to, p)
#define WRITE_QUAD_stored(p, from) WRITE_QUAD_real(p, from)
#define QUAD_ALIGNED_stored(p) QUAD_ALIGNED_real(p)
#endif

#define RAW_stored raw
#define RAW_real real
#define READ_RAW_stored(p, i) LOAD_RAW(p, i)
#define READ_RAW_real(p, i) ((p)[i])
#define NUMBER_stored(bits) REAL_OF(bits)
#define NUMBER_real(bits) (bits)
#define READ_RAWS_real(to, p) READ_QUAD_real(to, p)
#define GATHER_RAWS_real(to, p) _Pragma("unroll") for (int i_ = 0; i_ < 4; i_++)(to)[i_] = (p)[i_];
#define NUMBERS_real(to, from, together) _Pragma("unroll") for (int i_ = 0; i_ < 4; i_++)(to)[i_] = (from)[i_];
#if STORAGE == 16
#define READ_RAWS_stored(to, p)                              \
    {                                                        \
        const raw_quad quad = *(global const raw_quad *)(p); \
        (to)[0] = quad.x;                                    \
        (to)[1] = quad.y;                                    \
    }
#define GATHER_RAWS_stored(to, p)                        \
    {                                                    \
        (to)[0] = LOAD_RAW(p, 0) | LOAD_RAW(p, 1) << 16; \
        (to)[1] = LOAD_RAW(p, 2) | LOAD_RAW(p, 3) << 16; \
    }
#define NUMBERS_stored(to, from, together)                                                      \
    if (together) {                                                                             \
        _Pragma("unroll") for (int i_ = 0; i_ < 4; i_++)(to)[i_] = REAL_IN((from)[i_ / 2], i_); \
    } else {                                                                                    \
        _Pragma("unroll") for (int i_ = 0; i_ < 4; i_++)(to)[i_] = REAL_OF((from)[i_]);         \
    }
#else
#define READ_RAWS_stored(to, p) READ_QUAD_real(to, p)
#define GATHER_RAWS_stored(to, p) GATHER_RAWS_real(to, p)
#define NUMBERS_stored(to, from, together) NUMBERS_real(to, from, together)
#endif
