// Winograd's transforms of tiles, for CPU devices and GPUs. A tile of the source has SIDE elements along an axis, and
// the transform SIDE - 1 points and the one at infinity: 0, 1, -1 for F(2x2, 3x3); 0, P, -P, Q, -Q for F(4x4, 3x3) and
// for F(2x2, 5x5), which therefore share the source's transform; 0 and three or four pairs for lines of 8 or 10
// elements. The transforms of one axis are written out, those of 8 and 10 elements as loops over the pairs.
//
// Kernels of one row or one column are transformed along that axis alone. The other one has one tap, and tiles of one.
//
// TRANSFORMED  type of what is transformed: realv or real

#ifndef TILE
#define TILE 4  // outputs of a tile along a transformed axis: 2 or 4
#endif
#ifndef TAPS
#define TAPS 3  // of the kernel along a transformed axis: 3, 5 or 7
#endif
#ifndef STRIDE
#define STRIDE 1  // 2 for 3 x 3 kernels with that stride, whose phases have 2 taps or 1: TAPS is 2
#endif
#ifndef TAPS_H
#define TAPS_H TAPS  // 1 for kernels of one row
#endif
#ifndef TAPS_W
#define TAPS_W TAPS  // 1 for kernels of one column
#endif
#define SIDE (TILE + TAPS - 1)  // elements of the source that a tile meets along a transformed axis
// of a tile along each axis: outputs, and elements of the source
#define OUTPUTS_H (TAPS_H > 1 ? TILE : 1)
#define OUTPUTS_W (TAPS_W > 1 ? TILE : 1)
#define SIDE_H (OUTPUTS_H + TAPS_H - 1)
#define SIDE_W (OUTPUTS_W + TAPS_W - 1)
#define ELEMENTS (SIDE_H * SIDE_W)
// of the kernel along each axis, and in all
#define KERNEL_H (STRIDE * (TAPS_H - 1) + 1)
#define KERNEL_W (STRIDE * (TAPS_W - 1) + 1)
#define FILTER_TAPS (KERNEL_H * KERNEL_W)

#if SIDE >= 8

#define PAIRS (SIDE / 2 - 1)  // of points p and -p

// Coefficients of (x - a) (x - b) ... in rising powers of x.
#define ROOTS_2(a, b) {(a) * (b), -((a) + (b)), 1}
#define ROOTS_3(a, b, c) {-(a) * (b) * (c), (a) * (b) + ((a) + (b)) * (c), -((a) + (b) + (c)), 1}
#define ROOTS_4(a, b, c, d)                                                       \
    {(a) * (b) * (c) * (d), -((a) * (b) * ((c) + (d)) + ((a) + (b)) * (c) * (d)), \
     (a) * (b) + (c) * (d) + ((a) + (b)) * ((c) + (d)), -((a) + (b) + (c) + (d)), 1}

// The points that round least of all with few bits, so that all constants of the source's transform are exact.
// ALL_ROOTS has the squares of all points as its roots, OTHER_ROOTS those of all pairs but one. POINT_NORMS are 1 / (2
// p^2 times p^2 - q^2 of every other pair), ZERO_NORM is 1 / the product of -p^2.
#if SIDE == 8
#define S0 REAL(0.25)
#define S1 REAL(1.0)
#define S2 REAL(4.0)
constant real POINTS[PAIRS] = {REAL(0.5), REAL(1.0), REAL(2.0)};
constant real SQUARES[PAIRS] = {S0, S1, S2};
constant real ALL_ROOTS[PAIRS + 1] = ROOTS_3(S0, S1, S2);
constant real OTHER_ROOTS[PAIRS][PAIRS] = {ROOTS_2(S1, S2), ROOTS_2(S0, S2), ROOTS_2(S0, S1)};
#define POINT_NORM(p, a, b) (REAL(0.5) / ((p) * ((p) - (a)) * ((p) - (b))))
constant real POINT_NORMS[PAIRS] = {POINT_NORM(S0, S1, S2), POINT_NORM(S1, S0, S2), POINT_NORM(S2, S0, S1)};
#define ZERO_NORM (-1 / (S0 * S1 * S2))
#else
#define S0 REAL(0.140625)
#define S1 REAL(0.5625)
#define S2 REAL(1.5625)
#define S3 REAL(6.25)
constant real POINTS[PAIRS] = {REAL(0.375), REAL(0.75), REAL(1.25), REAL(2.5)};
constant real SQUARES[PAIRS] = {S0, S1, S2, S3};
constant real ALL_ROOTS[PAIRS + 1] = ROOTS_4(S0, S1, S2, S3);
constant real OTHER_ROOTS[PAIRS][PAIRS] = {
    ROOTS_3(S1, S2, S3), ROOTS_3(S0, S2, S3), ROOTS_3(S0, S1, S3), ROOTS_3(S0, S1, S2)};
#define POINT_NORM(p, a, b, c) (REAL(0.5) / ((p) * ((p) - (a)) * ((p) - (b)) * ((p) - (c))))
constant real POINT_NORMS[PAIRS] = {
    POINT_NORM(S0, S1, S2, S3), POINT_NORM(S1, S0, S2, S3), POINT_NORM(S2, S0, S1, S3), POINT_NORM(S3, S0, S1, S2)};
#define ZERO_NORM (1 / (S0 * S1 * S2 * S3))
#endif

#define UNROLL _Pragma("unroll")

// B^T d: at each pair the even and the odd elements with the coefficients of the other pairs' polynomial.
#define TRANSFORM_SOURCE(d, out)                                                                 \
    {                                                                                            \
        out[0] = ALL_ROOTS[0] * (d)[0];                                                          \
        out[SIDE - 1] = ALL_ROOTS[0] * (d)[1];                                                   \
        UNROLL for (int k_ = 1; k_ <= PAIRS; k_++) {                                             \
            out[0] += ALL_ROOTS[k_] * (d)[2 * k_];                                               \
            out[SIDE - 1] += ALL_ROOTS[k_] * (d)[2 * k_ + 1];                                    \
        }                                                                                        \
        UNROLL for (int p_ = 0; p_ < PAIRS; p_++) {                                              \
            TRANSFORMED even_ = OTHER_ROOTS[p_][0] * (d)[2], odd_ = OTHER_ROOTS[p_][0] * (d)[1]; \
            UNROLL for (int k_ = 1; k_ < PAIRS; k_++) {                                          \
                even_ += OTHER_ROOTS[p_][k_] * (d)[2 * k_ + 2];                                  \
                odd_ += OTHER_ROOTS[p_][k_] * (d)[2 * k_ + 1];                                   \
            }                                                                                    \
            out[2 * p_ + 1] = even_ + POINTS[p_] * odd_;                                         \
            out[2 * p_ + 2] = even_ - POINTS[p_] * odd_;                                         \
        }                                                                                        \
    }

// `count` numbers as the coefficients of a polynomial, at all points: count to SIDE.
#define AT_POINTS(from, count, out, zero_norm, point_norm)                                                   \
    {                                                                                                        \
        out[0] = (from)[0] * (zero_norm);                                                                    \
        out[SIDE - 1] = (from)[(count) - 1];                                                                 \
        UNROLL for (int p_ = 0; p_ < PAIRS; p_++) {                                                          \
            const int last_even_ = ((count) - 1) / 2 * 2, last_odd_ = (count) / 2 * 2 - 1;                   \
            TRANSFORMED even_ = (from)[last_even_], odd_ = (from)[last_odd_];                                \
            UNROLL for (int k_ = last_even_ - 2; k_ >= 0; k_ -= 2) even_ = even_ * SQUARES[p_] + (from)[k_]; \
            UNROLL for (int k_ = last_odd_ - 2; k_ >= 0; k_ -= 2) odd_ = odd_ * SQUARES[p_] + (from)[k_];    \
            even_ *= point_norm;                                                                             \
            odd_ *= POINTS[p_] * (point_norm);                                                               \
            out[2 * p_ + 1] = even_ + odd_;                                                                  \
            out[2 * p_ + 2] = even_ - odd_;                                                                  \
        }                                                                                                    \
    }

// The transposed: sums over all points of their powers, SIDE to count.
#define OVER_POINTS(from, count, out, zero_norm, point_norm)                                            \
    {                                                                                                   \
        UNROLL for (int k_ = 0; k_ < (count); k_++) out[k_] = 0;                                        \
        out[0] = (from)[0] * (zero_norm);                                                               \
        UNROLL for (int p_ = 0; p_ < PAIRS; p_++) {                                                     \
            TRANSFORMED even_ = ((from)[2 * p_ + 1] + (from)[2 * p_ + 2]) * (point_norm);               \
            TRANSFORMED odd_ = ((from)[2 * p_ + 1] - (from)[2 * p_ + 2]) * (POINTS[p_] * (point_norm)); \
            UNROLL for (int k_ = 0; k_ < (count); k_ += 2) {                                            \
                out[k_] += even_;                                                                       \
                even_ *= SQUARES[p_];                                                                   \
                if (k_ + 1 < (count)) out[k_ + 1] += odd_;                                              \
                odd_ *= SQUARES[p_];                                                                    \
            }                                                                                           \
        }                                                                                               \
        out[(count) - 1] += (from)[SIDE - 1];                                                           \
    }

#define TRANSFORM_PRODUCT(m, out) OVER_POINTS(m, TILE, out, 1, 1)
#define TRANSFORM_GRADIENT(y, out) AT_POINTS(y, TILE, out, 1, 1)
#define TRANSFORM_WEIGHTS(w, out) AT_POINTS(w, TAPS, out, ZERO_NORM, POINT_NORMS[p_])
#define TRANSFORM_FILTER(m, out) OVER_POINTS(m, TAPS, out, ZERO_NORM, POINT_NORMS[p_])

#elif SIDE == 6

// Points of which each is close to the other's inverse, and all whose powers here are exact: 1 and 2 would round two or
// three times as much.
#define P REAL(0.75)
#define Q REAL(1.5)
#define P_NORM (REAL(0.5) / (P * P * (P * P - Q * Q)))
#define Q_NORM (REAL(0.5) / (Q * Q * (Q * Q - P * P)))
#define ZERO_NORM (1 / (P * P * Q * Q))

// B^T d, the source's transform of one axis: SIDE to SIDE, and its first and second half.
#define FIRST_OF_SOURCE(d, out)                                                       \
    {                                                                                 \
        const TRANSFORMED a_ = (d)[4] - Q * Q * (d)[2], b_ = (d)[3] - Q * Q * (d)[1]; \
        (out)[0] = P * P * Q * Q * (d)[0] - (P * P + Q * Q) * (d)[2] + (d)[4];        \
        (out)[1] = a_ + P * b_;                                                       \
        (out)[2] = a_ - P * b_;                                                       \
    }
#define SECOND_OF_SOURCE(d, out)                                                      \
    {                                                                                 \
        const TRANSFORMED c_ = (d)[4] - P * P * (d)[2], e_ = (d)[3] - P * P * (d)[1]; \
        (out)[0] = c_ + Q * e_;                                                       \
        (out)[1] = c_ - Q * e_;                                                       \
        (out)[2] = P * P * Q * Q * (d)[1] - (P * P + Q * Q) * (d)[3] + (d)[5];        \
    }
#define TRANSFORM_SOURCE(d, out) {FIRST_OF_SOURCE(d, out) SECOND_OF_SOURCE(d, out + 3)}

#if TAPS == 3

// A^T m, the products' transform: SIDE to TILE, and its even and odd elements.
#define EVEN_OF_PRODUCT(m, out)                                       \
    {                                                                 \
        const TRANSFORMED a_ = (m)[1] + (m)[2], c_ = (m)[3] + (m)[4]; \
        (out)[0] = (m)[0] + a_ + c_;                                  \
        (out)[1] = P * P * a_ + Q * Q * c_;                           \
    }
#define ODD_OF_PRODUCT(m, out)                                                    \
    {                                                                             \
        const TRANSFORMED b_ = P * ((m)[1] - (m)[2]), e_ = Q * ((m)[3] - (m)[4]); \
        (out)[0] = b_ + e_;                                                       \
        (out)[1] = P * P * b_ + Q * Q * e_ + (m)[5];                              \
    }
#define TRANSFORM_PRODUCT(m, out)      \
    {                                  \
        TRANSFORMED even_[2], odd_[2]; \
        EVEN_OF_PRODUCT(m, even_)      \
        ODD_OF_PRODUCT(m, odd_)        \
        out[0] = even_[0];             \
        out[1] = odd_[0];              \
        out[2] = even_[1];             \
        out[3] = odd_[1];              \
    }

// A y, the gradients' transform: TILE to SIDE.
#define TRANSFORM_GRADIENT(y, out)                                                    \
    {                                                                                 \
        const TRANSFORMED a_ = (y)[0] + P * P * (y)[2], b_ = (y)[1] + P * P * (y)[3]; \
        const TRANSFORMED c_ = (y)[0] + Q * Q * (y)[2], e_ = (y)[1] + Q * Q * (y)[3]; \
        out[0] = (y)[0];                                                              \
        out[1] = a_ + P * b_;                                                         \
        out[2] = a_ - P * b_;                                                         \
        out[3] = c_ + Q * e_;                                                         \
        out[4] = c_ - Q * e_;                                                         \
        out[5] = (y)[3];                                                              \
    }

// G w, the weights' transform: TAPS to SIDE.
#define TRANSFORM_WEIGHTS(w, out)                                                            \
    {                                                                                        \
        const TRANSFORMED a_ = P_NORM * ((w)[0] + P * P * (w)[2]), b_ = P_NORM * P * (w)[1]; \
        const TRANSFORMED c_ = Q_NORM * ((w)[0] + Q * Q * (w)[2]), e_ = Q_NORM * Q * (w)[1]; \
        out[0] = (w)[0] * ZERO_NORM;                                                         \
        out[1] = a_ + b_;                                                                    \
        out[2] = a_ - b_;                                                                    \
        out[3] = c_ + e_;                                                                    \
        out[4] = c_ - e_;                                                                    \
        out[5] = (w)[2];                                                                     \
    }

// G^T m, the transform of the weights' gradients: SIDE to TAPS.
#define TRANSFORM_FILTER(m, out)                                                            \
    {                                                                                       \
        const TRANSFORMED a_ = P_NORM * ((m)[1] + (m)[2]), b_ = P_NORM * ((m)[1] - (m)[2]); \
        const TRANSFORMED c_ = Q_NORM * ((m)[3] + (m)[4]), e_ = Q_NORM * ((m)[3] - (m)[4]); \
        out[0] = (m)[0] * ZERO_NORM + a_ + c_;                                              \
        out[1] = P * b_ + Q * e_;                                                           \
        out[2] = P * P * a_ + Q * Q * c_ + (m)[5];                                          \
    }

#else

// The same for two outputs and five taps.
#define TRANSFORM_PRODUCT(m, out)                                        \
    {                                                                    \
        out[0] = (m)[0] + ((m)[1] + (m)[2]) + ((m)[3] + (m)[4]);         \
        out[1] = P * ((m)[1] - (m)[2]) + Q * ((m)[3] - (m)[4]) + (m)[5]; \
    }
#define TRANSFORM_GRADIENT(y, out)                          \
    {                                                       \
        const TRANSFORMED b_ = P * (y)[1], e_ = Q * (y)[1]; \
        out[0] = (y)[0];                                    \
        out[1] = (y)[0] + b_;                               \
        out[2] = (y)[0] - b_;                               \
        out[3] = (y)[0] + e_;                               \
        out[4] = (y)[0] - e_;                               \
        out[5] = (y)[1];                                    \
    }
#define TRANSFORM_WEIGHTS(w, out)                                                     \
    {                                                                                 \
        const TRANSFORMED a_ = P_NORM * ((w)[0] + P * P * ((w)[2] + P * P * (w)[4])); \
        const TRANSFORMED b_ = P_NORM * P * ((w)[1] + P * P * (w)[3]);                \
        const TRANSFORMED c_ = Q_NORM * ((w)[0] + Q * Q * ((w)[2] + Q * Q * (w)[4])); \
        const TRANSFORMED e_ = Q_NORM * Q * ((w)[1] + Q * Q * (w)[3]);                \
        out[0] = (w)[0] * ZERO_NORM;                                                  \
        out[1] = a_ + b_;                                                             \
        out[2] = a_ - b_;                                                             \
        out[3] = c_ + e_;                                                             \
        out[4] = c_ - e_;                                                             \
        out[5] = (w)[4];                                                              \
    }
#define TRANSFORM_FILTER(m, out)                                                                \
    {                                                                                           \
        const TRANSFORMED a_ = P_NORM * ((m)[1] + (m)[2]), b_ = P_NORM * P * ((m)[1] - (m)[2]); \
        const TRANSFORMED c_ = Q_NORM * ((m)[3] + (m)[4]), e_ = Q_NORM * Q * ((m)[3] - (m)[4]); \
        out[0] = (m)[0] * ZERO_NORM + a_ + c_;                                                  \
        out[1] = b_ + e_;                                                                       \
        out[2] = P * P * a_ + Q * Q * c_;                                                       \
        out[3] = P * P * b_ + Q * Q * e_;                                                       \
        out[4] = P * P * P * P * a_ + Q * Q * Q * Q * c_ + (m)[5];                              \
    }

#endif

#elif SIDE == 5

// Four outputs and two taps of a stride's phases: without zero, and the points that round least.
#define P REAL(0.5)
#define Q REAL(1.5)
#define P_NORM (REAL(0.5) / (P * (P * P - Q * Q)))
#define Q_NORM (REAL(0.5) / (Q * (Q * Q - P * P)))
#define TRANSFORM_SOURCE(d, out)                                                      \
    {                                                                                 \
        const TRANSFORMED a_ = (d)[2] - Q * Q * (d)[0], b_ = (d)[3] - Q * Q * (d)[1]; \
        const TRANSFORMED c_ = (d)[2] - P * P * (d)[0], e_ = (d)[3] - P * P * (d)[1]; \
        out[0] = P * a_ + b_;                                                         \
        out[1] = P * a_ - b_;                                                         \
        out[2] = Q * c_ + e_;                                                         \
        out[3] = Q * c_ - e_;                                                         \
        out[4] = P * P * Q * Q * (d)[0] - (P * P + Q * Q) * (d)[2] + (d)[4];          \
    }
#define TRANSFORM_PRODUCT(m, out)                                                 \
    {                                                                             \
        const TRANSFORMED a_ = (m)[0] + (m)[1], c_ = (m)[2] + (m)[3];             \
        const TRANSFORMED b_ = P * ((m)[0] - (m)[1]), e_ = Q * ((m)[2] - (m)[3]); \
        out[0] = a_ + c_;                                                         \
        out[1] = b_ + e_;                                                         \
        out[2] = P * P * a_ + Q * Q * c_;                                         \
        out[3] = P * P * b_ + Q * Q * e_ + (m)[4];                                \
    }
#define TRANSFORM_GRADIENT(y, out)                                                    \
    {                                                                                 \
        const TRANSFORMED a_ = (y)[0] + P * P * (y)[2], b_ = (y)[1] + P * P * (y)[3]; \
        const TRANSFORMED c_ = (y)[0] + Q * Q * (y)[2], e_ = (y)[1] + Q * Q * (y)[3]; \
        out[0] = a_ + P * b_;                                                         \
        out[1] = a_ - P * b_;                                                         \
        out[2] = c_ + Q * e_;                                                         \
        out[3] = c_ - Q * e_;                                                         \
        out[4] = (y)[3];                                                              \
    }
#define TRANSFORM_WEIGHTS(w, out)                       \
    {                                                   \
        out[0] = P_NORM * (w)[0] + P_NORM * P * (w)[1]; \
        out[1] = P_NORM * (w)[0] - P_NORM * P * (w)[1]; \
        out[2] = Q_NORM * (w)[0] + Q_NORM * Q * (w)[1]; \
        out[3] = Q_NORM * (w)[0] - Q_NORM * Q * (w)[1]; \
        out[4] = (w)[1];                                \
    }
#define TRANSFORM_FILTER(m, out)                                                           \
    {                                                                                      \
        out[0] = P_NORM * ((m)[0] + (m)[1]) + Q_NORM * ((m)[2] + (m)[3]);                  \
        out[1] = P_NORM * P * ((m)[0] - (m)[1]) + Q_NORM * Q * ((m)[2] - (m)[3]) + (m)[4]; \
    }

#elif SIDE == 3

// Two outputs and two taps: 1 and -1.
#define TRANSFORM_SOURCE(d, out)  \
    {                             \
        out[0] = (d)[0] + (d)[1]; \
        out[1] = (d)[0] - (d)[1]; \
        out[2] = (d)[2] - (d)[0]; \
    }
#define TRANSFORM_PRODUCT(m, out)          \
    {                                      \
        out[0] = (m)[0] + (m)[1];          \
        out[1] = (m)[0] - (m)[1] + (m)[2]; \
    }
#define TRANSFORM_GRADIENT(y, out) \
    {                              \
        out[0] = (y)[0] + (y)[1];  \
        out[1] = (y)[0] - (y)[1];  \
        out[2] = (y)[1];           \
    }
#define TRANSFORM_WEIGHTS(w, out)               \
    {                                           \
        out[0] = ((w)[0] + (w)[1]) * REAL(0.5); \
        out[1] = ((w)[0] - (w)[1]) * REAL(0.5); \
        out[2] = (w)[1];                        \
    }
#define TRANSFORM_FILTER(m, out)                         \
    {                                                    \
        out[0] = ((m)[0] + (m)[1]) * REAL(0.5);          \
        out[1] = ((m)[0] - (m)[1]) * REAL(0.5) + (m)[2]; \
    }

#else

#define TRANSFORM_SOURCE(d, out)  \
    {                             \
        out[0] = (d)[0] - (d)[2]; \
        out[1] = (d)[1] + (d)[2]; \
        out[2] = (d)[2] - (d)[1]; \
        out[3] = (d)[3] - (d)[1]; \
    }
#define TRANSFORM_PRODUCT(m, out)            \
    {                                        \
        out[0] = (m)[0] + ((m)[1] + (m)[2]); \
        out[1] = (m)[1] - (m)[2] + (m)[3];   \
    }
#define TRANSFORM_GRADIENT(y, out) \
    {                              \
        out[0] = (y)[0];           \
        out[1] = (y)[0] + (y)[1];  \
        out[2] = (y)[0] - (y)[1];  \
        out[3] = (y)[1];           \
    }
#define TRANSFORM_WEIGHTS(w, out)                                                      \
    {                                                                                  \
        const TRANSFORMED a_ = ((w)[0] + (w)[2]) * REAL(0.5), b_ = (w)[1] * REAL(0.5); \
        out[0] = (w)[0];                                                               \
        out[1] = a_ + b_;                                                              \
        out[2] = a_ - b_;                                                              \
        out[3] = (w)[2];                                                               \
    }
#define TRANSFORM_FILTER(m, out)                              \
    {                                                         \
        const TRANSFORMED a_ = ((m)[1] + (m)[2]) * REAL(0.5); \
        out[0] = (m)[0] + a_;                                 \
        out[1] = ((m)[1] - (m)[2]) * REAL(0.5);               \
        out[2] = a_ + (m)[3];                                 \
    }

#endif

// Both axes: F on the columns of from x from elements, then on the rows. in(i, j) is what is transformed, put(i, j,
// value) takes the to x to results. `lines` is the pragma of the loops over columns and rows: as loops they are a sixth
// of the code, which compiles faster. Kernels of one row or column have F on that one.
#if TAPS_H == 1 || TAPS_W == 1
#define TRANSFORM_LINES(lines, F, from, to, in, put)                                                                \
    {                                                                                                               \
        TRANSFORMED line_[from], out_[to];                                                                          \
        _Pragma("unroll") for (int i = 0; i < (from); i++) line_[i] = TAPS_H == 1 ? in(0, i) : in(i, 0);            \
        F(line_, out_)                                                                                              \
        _Pragma("unroll") for (int i = 0; i < (to); i++) { put(TAPS_H == 1 ? 0 : i, TAPS_H == 1 ? i : 0, out_[i]) } \
    }
#else
#define TRANSFORM_LINES(lines, F, from, to, in, put)                                              \
    {                                                                                             \
        TRANSFORMED half_done[(to) * (from)];                                                     \
        lines for (int j = 0; j < (from); j++) {                                                  \
            TRANSFORMED column_[from], out_[to];                                                  \
            _Pragma("unroll") for (int i = 0; i < (from); i++) column_[i] = in(i, j);             \
            F(column_, out_)                                                                      \
            _Pragma("unroll") for (int i = 0; i < (to); i++) half_done[i * (from) + j] = out_[i]; \
        }                                                                                         \
        lines for (int i = 0; i < (to); i++) {                                                    \
            TRANSFORMED out_[to];                                                                 \
            F(half_done + i * (from), out_)                                                       \
            _Pragma("unroll") for (int j = 0; j < (to); j++) { put(i, j, out_[j]) }               \
        }                                                                                         \
    }
#endif
#define TRANSFORM_2D(F, from, to, in, put) TRANSFORM_LINES(_Pragma("unroll"), F, from, to, in, put)
#define TRANSFORM_2D_IN_LOOPS(F, from, to, in, put) TRANSFORM_LINES(_Pragma("unroll 1"), F, from, to, in, put)

// The same for transforms whose results fall into two halves that share no arithmetic: a half of the columns' results
// at a time stays in registers, of which it needs `rows` x from; row(half, k) is the row of its k-th results.
#define TRANSFORM_HALF(HALF_F, F, half, rows, from, to, row, in, put)                               \
    {                                                                                               \
        TRANSFORMED half_done[(rows) * (from)];                                                     \
        _Pragma("unroll") for (int j = 0; j < (from); j++) {                                        \
            TRANSFORMED column_[from], out_[rows];                                                  \
            _Pragma("unroll") for (int i = 0; i < (from); i++) column_[i] = in(i, j);               \
            HALF_F(column_, out_)                                                                   \
            _Pragma("unroll") for (int i = 0; i < (rows); i++) half_done[i * (from) + j] = out_[i]; \
        }                                                                                           \
        _Pragma("unroll") for (int i = 0; i < (rows); i++) {                                        \
            TRANSFORMED out_[to];                                                                   \
            F(half_done + i * (from), out_)                                                         \
            _Pragma("unroll") for (int j = 0; j < (to); j++) { put(row(half, i), j, out_[j]) }      \
        }                                                                                           \
    }
#define HALF_OF_ROWS(half, k) ((half) * SIDE / 2 + (k))
#define EVEN_OR_ODD_ROWS(half, k) (2 * (k) + (half))

// The transforms of tiles on CPU devices; with HALVES, registers hold half of a tile.
#if defined(HALVES) && SIDE == 6 && TAPS == 3 && TAPS_H > 1 && TAPS_W > 1
#define TRANSFORM_SOURCE_2D(in, put)                                                                  \
    TRANSFORM_HALF(FIRST_OF_SOURCE, TRANSFORM_SOURCE, 0, SIDE / 2, SIDE, SIDE, HALF_OF_ROWS, in, put) \
    TRANSFORM_HALF(SECOND_OF_SOURCE, TRANSFORM_SOURCE, 1, SIDE / 2, SIDE, SIDE, HALF_OF_ROWS, in, put)
#define TRANSFORM_PRODUCT_2D(in, put)                                                                      \
    TRANSFORM_HALF(EVEN_OF_PRODUCT, TRANSFORM_PRODUCT, 0, TILE / 2, SIDE, TILE, EVEN_OR_ODD_ROWS, in, put) \
    TRANSFORM_HALF(ODD_OF_PRODUCT, TRANSFORM_PRODUCT, 1, TILE / 2, SIDE, TILE, EVEN_OR_ODD_ROWS, in, put)
#else
#define TRANSFORM_SOURCE_2D(in, put) TRANSFORM_2D_IN_LOOPS(TRANSFORM_SOURCE, SIDE, SIDE, in, put)
#define TRANSFORM_PRODUCT_2D(in, put) TRANSFORM_2D_IN_LOOPS(TRANSFORM_PRODUCT, SIDE, TILE, in, put)
#endif
