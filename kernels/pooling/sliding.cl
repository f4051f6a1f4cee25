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

#include "common/lanes.cl"
#include "pooling/operators.cl"

#ifndef BACKWARD
#define BACKWARD 0
#endif
#ifndef KH
#define KH 3
#define KW 3
#endif
#define IS_FULL(u) ((count_padding || (u) >= ph) && (u) - ph + KH <= (count_padding ? eh : IN_HEIGHT))
#define ROWS_OF(u) (IS_FULL(u) ? KH : counted((u) - ph, KH, IN_HEIGHT, eh, count_padding))
#define EACH_TAP _Pragma("unroll") for (int j = 0; j < KW; j++)
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
        for (int from = 0; from < ow; from += VL) {
            const int v = min(from, ow - VL), c = v + bw;
            maskv inside[KW];
            EACH_TAP inside[j] = (lanes >= (real)(-c - j)) & (lanes < (real)(iw - c - j));
            realv rows[KH], scale[BACKWARD ? KW : 1];
            int held = 0;
            // the rows whose vectors lie within the tensor
            const long before = begin + c, after = total - (KW - 1 + VL) - before;
            const int safe = before < 0 ? (int)((iw - 1 - before) / iw) : 0;
            const int safe_end = after < 0 ? 0 : (int)min(after / iw + 1, (long)ih);
            global stored *to = target + (plane * oh * ow + v);
            global const stored *row = source + (before + (long)bh * iw);
#pragma unroll
            for (int i = 0; i < KH; i++) rows[i] = START;
            for (int r = bh; r < oh + bh + KH - 1; r++, row += iw) {
#pragma unroll
                for (int i = 0; i < KH - 1; i++) rows[i] = rows[i + 1];
                rows[KH - 1] = START;
                if (r >= 0 && r < ih) {
#if OPERATOR == 1 && BACKWARD
                    const int count = ROWS_OF(r);
                    if (count != held) {
                        EACH_TAP scale[j] = REAL(1.0) / ((real)count * GET(columns, MARGIN + c + j));
                        held = count;
                    }
#define TAKEN(value, j) ((value) * scale[j])
#else
#define TAKEN(value, j) (value)
#endif
                    realv taken[KW];
                    if (r >= safe && r < safe_end) {
                        EACH_TAP taken[j] = VLOAD(row, j);
                    } else {
                        real edge[KW - 1 + VL];
                        for (int i = 0; i < KW - 1 + VL; i++) edge[i] = c + i >= 0 && c + i < iw ? LOAD(row, i) : START;
                        EACH_TAP taken[j] = GET(edge, j);
                    }
                    EACH_TAP {
                        const realv counts = select((realv)(START), TAKEN(taken[j], j), inside[j]);
                        rows[KH - 1] = JOIN(rows[KH - 1], counts);
                    }
                }
                const int u = r - bh - KH + 1;
                if (u < 0) continue;
                realv result = rows[0];
#pragma unroll
                for (int i = 1; i < KH; i++) result = JOIN(result, rows[i]);
#if OPERATOR == 1 && !BACKWARD
                const int count = ROWS_OF(u);
                if (count != held) {
                    scale[0] = (real)count * GET(columns, MARGIN + v);
#if STORAGE == 16
                    scale[0] = REAL(1.0) / scale[0];
#endif
                    held = count;
                }
#if STORAGE == 16
                result *= scale[0];
#else
                result /= scale[0];
#endif
#endif
                if (accumulate)  // lanes that the vector before has in common with this one have been added
                    result = VLOAD(to, 0) + select((realv)(0), result, lanes >= (real)(from - v));
                VSTORE(to, 0, result);
                to += ow;
            }
        }
    }
}
