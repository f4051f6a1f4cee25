// Winograd's transforms of tiles, for CPU devices and GPUs. A tile of the source has SIDE elements along an axis, and the
// transform SIDE - 1 points and the one at infinity: 0, 1, -1 for F(2x2, 3x3); 0, P, -P, Q, -Q for F(4x4, 3x3) and for
// F(2x2, 5x5), which therefore share the source's transform. The transforms of one axis are written out.
//
// TRANSFORMED  type of what is transformed: realv or real

#ifndef TILE
#define TILE 4  // outputs of a tile along an axis: 2 or 4 for 3 taps, 2 for 5
#endif
#ifndef TAPS
#define TAPS 3  // of the kernel along an axis: 3 or 5
#endif
#define SIDE (TILE + TAPS - 1)  // elements of the source that a tile meets along an axis
#define ELEMENTS (SIDE * SIDE)
#define FILTER_TAPS (TAPS * TAPS)

#if SIDE == 6

// Points of which each is close to the other's inverse, and all whose powers here are exact: 1 and 2 would round two or
// three times as much.
#define P REAL(0.75)
#define Q REAL(1.5)
#define P_NORM (REAL(0.5) / (P * P * (P * P - Q * Q)))
#define Q_NORM (REAL(0.5) / (Q * Q * (Q * Q - P * P)))
#define ZERO_NORM (1 / (P * P * Q * Q))

// B^T d, the source's transform of one axis: SIDE to SIDE.
#define TRANSFORM_SOURCE(d, out) \
    { \
        const TRANSFORMED a_ = (d)[4] - Q * Q * (d)[2], b_ = (d)[3] - Q * Q * (d)[1]; \
        const TRANSFORMED c_ = (d)[4] - P * P * (d)[2], e_ = (d)[3] - P * P * (d)[1]; \
        out[0] = P * P * Q * Q * (d)[0] - (P * P + Q * Q) * (d)[2] + (d)[4]; \
        out[1] = a_ + P * b_; \
        out[2] = a_ - P * b_; \
        out[3] = c_ + Q * e_; \
        out[4] = c_ - Q * e_; \
        out[5] = P * P * Q * Q * (d)[1] - (P * P + Q * Q) * (d)[3] + (d)[5]; \
    }

#if TAPS == 3

// A^T m, the products' transform: SIDE to TILE.
#define TRANSFORM_PRODUCT(m, out) \
    { \
        const TRANSFORMED a_ = (m)[1] + (m)[2], b_ = P * ((m)[1] - (m)[2]); \
        const TRANSFORMED c_ = (m)[3] + (m)[4], e_ = Q * ((m)[3] - (m)[4]); \
        out[0] = (m)[0] + a_ + c_; \
        out[1] = b_ + e_; \
        out[2] = P * P * a_ + Q * Q * c_; \
        out[3] = P * P * b_ + Q * Q * e_ + (m)[5]; \
    }

// A y, the gradients' transform: TILE to SIDE.
#define TRANSFORM_GRADIENT(y, out) \
    { \
        const TRANSFORMED a_ = (y)[0] + P * P * (y)[2], b_ = (y)[1] + P * P * (y)[3]; \
        const TRANSFORMED c_ = (y)[0] + Q * Q * (y)[2], e_ = (y)[1] + Q * Q * (y)[3]; \
        out[0] = (y)[0]; \
        out[1] = a_ + P * b_; \
        out[2] = a_ - P * b_; \
        out[3] = c_ + Q * e_; \
        out[4] = c_ - Q * e_; \
        out[5] = (y)[3]; \
    }

// G w, the weights' transform: TAPS to SIDE.
#define TRANSFORM_WEIGHTS(w, out) \
    { \
        const TRANSFORMED a_ = P_NORM * ((w)[0] + P * P * (w)[2]), b_ = P_NORM * P * (w)[1]; \
        const TRANSFORMED c_ = Q_NORM * ((w)[0] + Q * Q * (w)[2]), e_ = Q_NORM * Q * (w)[1]; \
        out[0] = (w)[0] * ZERO_NORM; \
        out[1] = a_ + b_; \
        out[2] = a_ - b_; \
        out[3] = c_ + e_; \
        out[4] = c_ - e_; \
        out[5] = (w)[2]; \
    }

// G^T m, the transform of the weights' gradients: SIDE to TAPS.
#define TRANSFORM_FILTER(m, out) \
    { \
        const TRANSFORMED a_ = P_NORM * ((m)[1] + (m)[2]), b_ = P_NORM * ((m)[1] - (m)[2]); \
        const TRANSFORMED c_ = Q_NORM * ((m)[3] + (m)[4]), e_ = Q_NORM * ((m)[3] - (m)[4]); \
        out[0] = (m)[0] * ZERO_NORM + a_ + c_; \
        out[1] = P * b_ + Q * e_; \
        out[2] = P * P * a_ + Q * Q * c_ + (m)[5]; \
    }

#else

// The same for two outputs and five taps.
#define TRANSFORM_PRODUCT(m, out) \
    { \
        out[0] = (m)[0] + ((m)[1] + (m)[2]) + ((m)[3] + (m)[4]); \
        out[1] = P * ((m)[1] - (m)[2]) + Q * ((m)[3] - (m)[4]) + (m)[5]; \
    }
#define TRANSFORM_GRADIENT(y, out) \
    { \
        const TRANSFORMED b_ = P * (y)[1], e_ = Q * (y)[1]; \
        out[0] = (y)[0]; \
        out[1] = (y)[0] + b_; \
        out[2] = (y)[0] - b_; \
        out[3] = (y)[0] + e_; \
        out[4] = (y)[0] - e_; \
        out[5] = (y)[1]; \
    }
#define TRANSFORM_WEIGHTS(w, out) \
    { \
        const TRANSFORMED a_ = P_NORM * ((w)[0] + P * P * ((w)[2] + P * P * (w)[4])); \
        const TRANSFORMED b_ = P_NORM * P * ((w)[1] + P * P * (w)[3]); \
        const TRANSFORMED c_ = Q_NORM * ((w)[0] + Q * Q * ((w)[2] + Q * Q * (w)[4])); \
        const TRANSFORMED e_ = Q_NORM * Q * ((w)[1] + Q * Q * (w)[3]); \
        out[0] = (w)[0] * ZERO_NORM; \
        out[1] = a_ + b_; \
        out[2] = a_ - b_; \
        out[3] = c_ + e_; \
        out[4] = c_ - e_; \
        out[5] = (w)[4]; \
    }
#define TRANSFORM_FILTER(m, out) \
    { \
        const TRANSFORMED a_ = P_NORM * ((m)[1] + (m)[2]), b_ = P_NORM * P * ((m)[1] - (m)[2]); \
        const TRANSFORMED c_ = Q_NORM * ((m)[3] + (m)[4]), e_ = Q_NORM * Q * ((m)[3] - (m)[4]); \
        out[0] = (m)[0] * ZERO_NORM + a_ + c_; \
        out[1] = b_ + e_; \
        out[2] = P * P * a_ + Q * Q * c_; \
        out[3] = P * P * b_ + Q * Q * e_; \
        out[4] = P * P * P * P * a_ + Q * Q * Q * Q * c_ + (m)[5]; \
    }

#endif

#else

#define TRANSFORM_SOURCE(d, out) \
    { \
        out[0] = (d)[0] - (d)[2]; \
        out[1] = (d)[1] + (d)[2]; \
        out[2] = (d)[2] - (d)[1]; \
        out[3] = (d)[3] - (d)[1]; \
    }
#define TRANSFORM_PRODUCT(m, out) \
    { \
        out[0] = (m)[0] + ((m)[1] + (m)[2]); \
        out[1] = (m)[1] - (m)[2] + (m)[3]; \
    }
#define TRANSFORM_GRADIENT(y, out) \
    { \
        out[0] = (y)[0]; \
        out[1] = (y)[0] + (y)[1]; \
        out[2] = (y)[0] - (y)[1]; \
        out[3] = (y)[1]; \
    }
#define TRANSFORM_WEIGHTS(w, out) \
    { \
        const TRANSFORMED a_ = ((w)[0] + (w)[2]) * REAL(0.5), b_ = (w)[1] * REAL(0.5); \
        out[0] = (w)[0]; \
        out[1] = a_ + b_; \
        out[2] = a_ - b_; \
        out[3] = (w)[2]; \
    }
#define TRANSFORM_FILTER(m, out) \
    { \
        const TRANSFORMED a_ = ((m)[1] + (m)[2]) * REAL(0.5); \
        out[0] = (m)[0] + a_; \
        out[1] = ((m)[1] - (m)[2]) * REAL(0.5); \
        out[2] = a_ + (m)[3]; \
    }

#endif

// Both axes: F on the columns of from x from elements, then on the rows. in(i, j) is what is transformed, put(i, j,
// value) takes the to x to results. `lines` is the pragma of the loops over columns and rows: as loops they are a sixth
// of the code, which compiles faster.
#define TRANSFORM_LINES(lines, F, from, to, in, put) \
    { \
        TRANSFORMED half_done[(to) * (from)]; \
        lines for (int j = 0; j < (from); j++) { \
            TRANSFORMED column_[from], out_[to]; \
            _Pragma("unroll") for (int i = 0; i < (from); i++) column_[i] = in(i, j); \
            F(column_, out_) \
            _Pragma("unroll") for (int i = 0; i < (to); i++) half_done[i * (from) + j] = out_[i]; \
        } \
        lines for (int i = 0; i < (to); i++) { \
            TRANSFORMED out_[to]; \
            F(half_done + i * (from), out_) \
            _Pragma("unroll") for (int j = 0; j < (to); j++) { put(i, j, out_[j]) } \
        } \
    }
#define TRANSFORM_2D(F, from, to, in, put) TRANSFORM_LINES(_Pragma("unroll"), F, from, to, in, put)
#define TRANSFORM_2D_IN_LOOPS(F, from, to, in, put) TRANSFORM_LINES(_Pragma("unroll 1"), F, from, to, in, put)
