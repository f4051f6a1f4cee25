// Which boxes (images, boxes, 4), in the order of their scores, overlap no better one that stays: y is 1 or 0.
//
// CENTER  see overlap.cl
// LABELS  1: only boxes with the same label count
// GROUP   work-items for an image

#ifndef LABELS
#define LABELS 0
#endif
#ifndef GROUP
#define GROUP 64
#endif

#include "detection/overlap.cl"

#if LABELS
#define LABELS_PARAMETER CONST_TENSOR(labels),
#define ALIKE(a, b) (LOAD(kinds, a) == LOAD(kinds, b))
#else
#define LABELS_PARAMETER
#define ALIKE(a, b) 1
#endif

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void suppress_ordered(
    CONST_TENSOR(boxes), CONST_TENSOR(valid), LABELS_PARAMETER TENSOR(y), const int accumulate, TENSOR_OF(uchar, left),
    const real overlap, const int count) {
    const ulong line = (ulong)get_group_id(0) * count;
    const int lane = get_local_id(0);
    global const stored *own = OPEN(boxes) + 4 * line, *good = OPEN(valid) + line;
#if LABELS
    global const stored *kinds = OPEN(labels) + line;
#endif
    global uchar *lefts = OPEN(left) + line;
    global stored *ys = OPEN(y) + line;
    for (int b = lane; b < count; b += GROUP) lefts[b] = LOAD(good, b) != 0;
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (int best = 0; best < count; best++) {
        if (lefts[best]) {  // the same for all work-items
            const box taken = box_at(own, best);
            for (int b = best + 1 + lane; b < count; b += GROUP)
                if (lefts[b] && ALIKE(b, best) && overlap_more(box_at(own, b), taken, overlap)) lefts[b] = 0;
        }
        barrier(CLK_GLOBAL_MEM_FENCE);
    }
    for (int b = lane; b < count; b += GROUP) {
        const real value = lefts[b] ? 1 : 0;
        STORE(ys, b, accumulate ? LOAD(ys, b) + value : value);
    }
}
