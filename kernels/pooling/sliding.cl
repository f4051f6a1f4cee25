// Pooling on CPU devices where windows begin at every element: columns of results slide down a plane's rows,
// and the last KH rows of the source stay in registers, joined to rows of windows. Nothing passes through memory, where
// a processor waits for what is read across vectors that were just stored.
//
// source  (planes, ih, iw): x, or dy of backward    target  (planes, oh, ow): y, or dx
//
// Result (u, v) joins the source's elements from (u + bh, v + bw) on. Forward divides an average's sums by the elements
// that count. Backward's sources are windows: it multiplies each by the reciprocal of what it was divided by. The last
// vector of a row overlaps the one before.
//
// OPERATOR       as in pooling/operators.cl: a maximum (forward alone), an average or a sum
// BACKWARD       which of the two is computed
// KH, KW         rows and columns of a window
// VL             lanes, at most the columns of the target
// SIDE           columns of vectors that slide side by side

#include "common/lanes.cl"
#include "pooling/operators.cl"

#ifndef BACKWARD
#define BACKWARD 0
#endif
#ifndef KH
#define KH 3
#define KW 3
#endif
#ifndef SIDE
#define SIDE 1
#endif
#define IS_FULL(u) ((count_padding || (u) >= ph) && (u) - ph + KH <= (count_padding ? eh : IN_HEIGHT))
#define ROWS_OF(u) (IS_FULL(u) ? KH : counted((u) - ph, KH, IN_HEIGHT, eh, count_padding))
#define EACH_TAP _Pragma("unroll") for (int j = 0; j < KW; j++)
#define EACH_COLUMN _Pragma("unroll") for (int q = 0; q < SIDE; q++)
#define MARGIN (KW + VL)  // elements of `columns` before the first column

#if STORAGE == 64
typedef CAT(long, VL) maskv;
#else
typedef CAT(int, VL) maskv;
#endif

#define SLIDING_SHAPE                                                                                               \
    const long planes, const int item_planes, const int ih, const int iw, const int oh, const int ow, const int bh, \
        const int bw, const int ph, const int pw, const int eh, const int ew, const int count_padding,              \
        const long total, local real *columns

#if BACKWARD
#define TENSORS CONST_TENSOR(x), CONST_TENSOR(y), CONST_TENSOR(dy), TENSOR(dx)
#define SOURCE OPEN(dy)
#define TARGET OPEN(dx)
#define COUNTED_COLUMNS iw
#define IN_HEIGHT oh
#define IN_WIDTH ow
#else
#define TENSORS CONST_TENSOR(x), TENSOR(y)
#define SOURCE OPEN(x)
#define TARGET OPEN(y)
#define COUNTED_COLUMNS ow
#define IN_HEIGHT ih
#define IN_WIDTH iw
#endif

SINGLE void pool_sliding(TENSORS, const int accumulate, SLIDING_SHAPE) {
    global const stored *source = SOURCE;
    global stored *target = TARGET;
    real numbers[VL];
    for (int i = 0; i < VL; i++) numbers[i] = i;
    const realv lanes = GET(numbers, 0);
#if OPERATOR == 1
    for (int c = -MARGIN; c < COUNTED_COLUMNS + MARGIN; c++)
        columns[MARGIN + c] = (real)counted(c - pw, KW, IN_WIDTH, ew, count_padding);
#endif
    const long first = get_global_id(0) * (long)item_planes, last = min(first + item_planes, planes);
    for (long plane = first; plane < last; plane++) {
        const long begin = plane * ih * iw;
        for (int from = 0; from < ow; from += SIDE * VL) {
            int v[SIDE], c[SIDE];
            maskv inside[SIDE][KW];
            realv rows[SIDE][KH], scale[SIDE][BACKWARD ? KW : 1];
            EACH_COLUMN {
                v[q] = min(from + q * VL, ow - VL);
                c[q] = v[q] + bw;
                EACH_TAP inside[q][j] = (lanes >= (real)(-c[q] - j)) & (lanes < (real)(iw - c[q] - j));
#pragma unroll
                for (int i = 0; i < KH; i++) rows[q][i] = START;
            }
            int held = 0;
            // the rows whose vectors lie within the tensor
            const long before = begin + c[0], after = total - (KW - 1 + VL) - (begin + c[SIDE - 1]);
            const int safe = before < 0 ? (int)((iw - 1 - before) / iw) : 0;
            const int safe_end = after < 0 ? 0 : (int)min(after / iw + 1, (long)ih);
            global stored *to = target + plane * oh * ow;
            global const stored *row = source + (begin + (long)bh * iw);
            for (int r = bh; r < oh + bh + KH - 1; r++, row += iw) {
                EACH_COLUMN {
#pragma unroll
                    for (int i = 0; i < KH - 1; i++) rows[q][i] = rows[q][i + 1];
                    rows[q][KH - 1] = START;
                }
                if (r >= 0 && r < ih) {
#if OPERATOR == 1 && BACKWARD
                    const int count = ROWS_OF(r);
                    if (count != held) {
                        EACH_COLUMN EACH_TAP scale[q][j] = REAL(1.0) / ((real)count * GET(columns, MARGIN + c[q] + j));
                        held = count;
                    }
#define TAKEN(value, q, j) ((value) * scale[q][j])
#else
#define TAKEN(value, q, j) (value)
#endif
                    realv taken[SIDE][KW];
                    if (r >= safe && r < safe_end) {
                        EACH_COLUMN EACH_TAP taken[q][j] = VLOAD(row, c[q] + j);
                    } else {
                        EACH_COLUMN {
                            real edge[KW - 1 + VL];
                            for (int i = 0; i < KW - 1 + VL; i++)
                                edge[i] = c[q] + i >= 0 && c[q] + i < iw ? LOAD(row, c[q] + i) : START;
                            EACH_TAP taken[q][j] = GET(edge, j);
                        }
                    }
                    EACH_COLUMN EACH_TAP {
                        const realv counts = select((realv)(START), TAKEN(taken[q][j], q, j), inside[q][j]);
                        rows[q][KH - 1] = JOIN(rows[q][KH - 1], counts);
                    }
                }
                const int u = r - bh - KH + 1;
                if (u < 0) continue;
#if OPERATOR == 1 && !BACKWARD
                const int count = ROWS_OF(u);
                if (count != held) {
                    EACH_COLUMN {
                        scale[q][0] = (real)count * GET(columns, MARGIN + v[q]);
#if STORAGE == 16
                        scale[q][0] = REAL(1.0) / scale[q][0];
#endif
                    }
                    held = count;
                }
#if STORAGE == 16
#define MEAN(sum, q) ((sum) * scale[q][0])
#else
#define MEAN(sum, q) ((sum) / scale[q][0])
#endif
#else
#define MEAN(sum, q) (sum)
#endif
                EACH_COLUMN {
                    realv result = rows[q][0];
#pragma unroll
                    for (int i = 1; i < KH; i++) result = JOIN(result, rows[q][i]);
                    result = MEAN(result, q);
                    if (accumulate)  // lanes that the vector before has in common with this one have been added
                        result = VLOAD(to, v[q]) + select((realv)(0), result, lanes >= (real)(from + q * VL - v[q]));
                    VSTORE(to, v[q], result);
                }
                to += ow;
            }
        }
    }
}
