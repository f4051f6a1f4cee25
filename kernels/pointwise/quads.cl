// Four neighbouring elements at once, on GPUs: one load or store of 16 bytes (float), of 8 (16 bits), or two (double).
//
// READ_QUAD_kind(to, p)    to[0] to to[3] from p on; WRITE_QUAD_kind(p, from) the other way round
// QUAD_ALIGNED_kind(p)     whether p allows that
//
// What is read in branches stays as memory has it until the branches end: a conversion in one waits for its load, and
// so does the next load. RAW_kind is the type, LOAD_RAW_kind(p, i) an element, READ_RAW_QUAD_kind(to, p) four of them,
// REAL_OF_kind(bits) the number.
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

#if STORAGE == 16
#ifdef BRAIN
#if !defined(VL) || VL != 4
SMALL_NUMBERS(4)
#endif
#define LOAD_QUAD(p) widen4(*(global const ushort4 *)(p))
#define STORE_QUAD(p, value) (*(global ushort4 *)(p) = narrow4(value))
#else
#define LOAD_QUAD(p) vloada_half4(0, (p))
#ifdef PTX
void store_quad(global stored *p, const float4 value) {
    *(global ushort4 *)p = (ushort4)(narrow(value.x), narrow(value.y), narrow(value.z), narrow(value.w));
}
#define STORE_QUAD(p, value) store_quad(p, value)
#else
#define STORE_QUAD(p, value) vstorea_half4_rte((value), 0, (p))
#endif
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
#define LOAD_RAW_stored(p, i) LOAD_RAW(p, i)
#define LOAD_RAW_real(p, i) ((p)[i])
#define REAL_OF_stored(bits) REAL_OF(bits)
#define REAL_OF_real(bits) (bits)
#define READ_RAW_QUAD_real(to, p) READ_QUAD_real(to, p)
#if STORAGE == 16
#define READ_RAW_QUAD_stored(to, p)                          \
    {                                                        \
        const RAW_QUAD quad = *(global const RAW_QUAD *)(p); \
        TAKE_QUAD(to, quad)                                  \
    }
#else
#define READ_RAW_QUAD_stored(to, p) READ_QUAD_real(to, p)
#endif
