// The best boxes of each image and class that overlap no better one: boxes (images, boxes, 4), scores
// (images, classes, boxes).
//
// CENTER  see overlap.cl

#include "detection/overlap.cl"

// A work-item per image and class: takes the best box that is left, and drops the boxes that overlap it.
kernel void choose_boxes(CONST_TENSOR(boxes), CONST_TENSOR(scores), TENSOR_OF(uchar, left), TENSOR_OF(int, chosen),
                         TENSOR_OF(int, counts), const real overlap, const real score, const int classes,
                         const int count, const int most) {
    const ulong line = get_global_id(0);
    global const stored *all = OPEN(boxes) + 4 * (line / classes) * count;
    global const stored *own = OPEN(scores) + line * count;
    global uchar *lefts = OPEN(left) + line * count;
    global int *choice = OPEN(chosen) + line * most;
    for (int b = 0; b < count; b++) lefts[b] = LOAD(own, b) > score;
    int number = 0;
    while (number < most) {
        int best = -1;
        real top = 0;
        for (int b = 0; b < count; b++) {
            if (!lefts[b]) continue;
            const real value = LOAD(own, b);
            if (best < 0 || value > top) {
                best = b;
                top = value;
            }
        }
        if (best < 0) break;
        choice[number++] = best;
        lefts[best] = 0;
        const box taken = box_at(all, best);
        for (int b = 0; b < count; b++)
            if (lefts[b] && overlap_more(box_at(all, b), taken, overlap)) lefts[b] = 0;
    }
    (OPEN(counts))[line] = number;
}

// One work-item: rows of (image, class, box), without gaps; zeros follow. A result that nobody wants is no memory.
kernel void join_boxes(TENSOR_OF(const int, chosen), TENSOR_OF(const int, counts), TENSOR_OF(int, index),
                       TENSOR_OF(int, count), const int accumulate_index, const int accumulate_count, const int lines,
                       const int classes, const int most) {
    global const int *choice = OPEN(chosen), *numbers = OPEN(counts);
    global int *rows = OPEN(index);
    ulong row = 0;
    for (int line = 0; line < lines; line++)
        for (int i = 0; i < numbers[line]; i++, row++) {
            const int found[3] = {line / classes, line % classes, choice[(ulong)line * most + i]};
            for (int k = 0; k < 3 && rows; k++)
                rows[3 * row + k] = accumulate_index ? rows[3 * row + k] + found[k] : found[k];
        }
    global int *total = OPEN(count);
    if (total) *total = accumulate_count ? *total + (int)row : (int)row;
    for (ulong at = 3 * row; at < 3 * (ulong)lines * most && rows && !accumulate_index; at++) rows[at] = 0;
}
