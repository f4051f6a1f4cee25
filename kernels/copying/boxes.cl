// A box of x goes to a box of y, or a value does: y[at] = x[at], or y[at] += x[at] where the run accumulates.
//
// The box has 5 outer axes, outermost first, and rows of `length` elements; x and y have a step per axis, in elements.
//   copy_rows      CPUs: rows that are contiguous in both, VL lanes at a time
//   copy_strided   CPUs: rows with steps
//   copy_doubled   CPUs: rows of which each element goes to two neighbours
//   copy_tiles     CPUs: the fifth outer axis is contiguous in x, the row in y: VL x VL elements at a time
//                  change places in registers
//   copy_elements  GPUs: a work-item takes ELEMENTS elements, a work-group apart
//   copy_turned    GPUs: as copy_tiles, through local memory
//   copy_turned_pairs  the same in 16 bits where all sizes and steps are even: tiles twice as wide, by twos
// A work-item of copy_tiles takes `rows_per_item` times VL positions of the fifth axis and whole rows, any other of a
// CPU takes one of `pieces` of a row, or `rows_per_item` whole rows.
//
// FILL  1: there is no x, `value` goes to the whole box.

#if FILL
#define SOURCE
#define VALUE_PARAMETER , const real value
#define READ(i) (value)
#else
#define SOURCE CONST_TENSOR(x),
#define VALUE_PARAMETER
#define READ(i) LOAD(xs, i)
#endif
// The box: its fields are the table in core/operators/copying/boxes.py, sizes of the outer axes but the first, and
// steps of all axes in x and y.
#ifdef STEPPED_BOX_FIELDS
typedef struct {
    STEPPED_BOX_FIELDS
} SteppedBox;
#endif
#define BOX_SIZES                                                                            \
    const ulong x_begin = box.x_begin, y_begin = box.y_begin, length = box.length;           \
    const ulong size1 = box.size1, size2 = box.size2, size3 = box.size3, size4 = box.size4;  \
    const long x0 = box.x0, x1 = box.x1, x2 = box.x2, x3 = box.x3, x4 = box.x4, x5 = box.x5; \
    const long y0 = box.y0, y1 = box.y1, y2 = box.y2, y3 = box.y3, y4 = box.y4, y5 = box.y5;

// Where the row of this number begins; NEXT_ROW goes on to the one after it without the divisions.
#define FIND_ROW(row)                                                            \
    ulong rest = row;                                                            \
    ulong at4 = rest % size4;                                                    \
    rest /= size4;                                                               \
    ulong at3 = rest % size3;                                                    \
    rest /= size3;                                                               \
    ulong at2 = rest % size2;                                                    \
    rest /= size2;                                                               \
    ulong at1 = rest % size1, at0 = rest / size1;                                \
    ulong from = x_begin + at0 * x0 + at1 * x1 + at2 * x2 + at3 * x3 + at4 * x4; \
    ulong to = y_begin + at0 * y0 + at1 * y1 + at2 * y2 + at3 * y3 + at4 * y4;
#define CARRY(a, outer)                    \
    if (at##a == size##a) {                \
        at##a = 0;                         \
        at##outer++;                       \
        from += x##outer - size##a * x##a; \
        to += y##outer - size##a * y##a;   \
    }
#define NEXT_ROW \
    at4++;       \
    from += x4;  \
    to += y4;    \
    CARRY(4, 3)  \
    CARRY(3, 2)  \
    CARRY(2, 1)  \
    CARRY(1, 0)

#if FILL
#define OPEN_SOURCE
#else
#define OPEN_SOURCE global const stored *xs = OPEN(x);
#endif
// What a kernel begins with.
#define OPEN_BOX \
    BOX_SIZES    \
    OPEN_SOURCE  \
    global stored *ys = OPEN(y);

#define WRITE(i, j)                         \
    {                                       \
        real new = READ(i);                 \
        if (accumulate) new += LOAD(ys, j); \
        STORE(ys, j, new);                  \
    }

#ifdef VL
#if FILL
#define VREAD(i) ((realv)value)
#else
#define VREAD(i) VLOAD(xs, i)
#endif

// What is moved and not added to: types of 16 bits as they are.
#if STORAGE == 16
typedef ushort moved;
typedef CAT(ushort, VL) movedv;
#if FILL
#define OPEN_MOVED                    \
    moved bits;                       \
    STORE((stored *)&bits, 0, value); \
    global moved *moved_to = (global moved *)ys;
#define MOVED(i) bits
#define VMOVED(i) ((movedv)bits)
#else
#define OPEN_MOVED                                             \
    global const moved *moved_from = (global const moved *)xs; \
    global moved *moved_to = (global moved *)ys;
#define MOVED(i) moved_from[i]
#define VMOVED(i) CAT(vload, VL)(0, moved_from + (i))
#endif
#else
typedef real moved;
typedef realv movedv;
#define OPEN_MOVED global moved *moved_to = ys;
#define MOVED(i) READ(i)
#define VMOVED(i) VREAD(i)
#endif
#define MOVE(i, j) moved_to[j] = MOVED(i);
#define VMOVE(i, j) CAT(vstore, VL)(VMOVED(i), 0, moved_to + (j));
#define WORK const ulong rows, const ulong pieces, const ulong rows_per_item
#define EACH_ROW                                                                                       \
    const ulong item = get_global_id(0), piece = item % pieces, first = item / pieces * rows_per_item; \
    const ulong begin = length * piece / pieces, end = length * (piece + 1) / pieces;                  \
    FIND_ROW(first)                                                                                    \
    for (ulong row = first; row < min(first + rows_per_item, rows); row++)

SINGLE void copy_rows(SOURCE TENSOR(y), const int accumulate, const SteppedBox box, WORK VALUE_PARAMETER) {
    OPEN_BOX
    OPEN_MOVED
    EACH_ROW {
        ulong i = begin;
        if (accumulate) {
            for (; i + VL <= end; i += VL) VSTORE(ys, to + i, VREAD(from + i) + VLOAD(ys, to + i));
            for (; i < end; i++) WRITE(from + i, to + i)
        } else {
            for (; i + VL <= end; i += VL) VMOVE(from + i, to + i)
            if (i < end && end - begin >= VL) {  // the last vector overlaps the one in front of it
                i = end;
                VMOVE(from + end - VL, to + end - VL)
            }
            for (; i < end; i++) MOVE(from + i, to + i)
        }
        NEXT_ROW
    }
}

SINGLE void copy_strided(SOURCE TENSOR(y), const int accumulate, const SteppedBox box, WORK VALUE_PARAMETER) {
    OPEN_BOX
    OPEN_MOVED
    EACH_ROW {
        if (accumulate) {
            for (ulong i = begin; i < end; i++) WRITE(from + i * x5, to + i * y5)
        } else {
            for (ulong i = begin; i < end; i++) MOVE(from + i * x5, to + i * y5)
        }
        NEXT_ROW
    }
}

#if !FILL
// VL elements from i on, each of them twice.
#define VMOVE_TWICE(i, j)                               \
    {                                                   \
        const movedv once = VMOVED(i);                  \
        movedv twice;                                   \
        twice.even = twice.odd = once.lo;               \
        CAT(vstore, VL)(twice, 0, moved_to + (j));      \
        twice.even = twice.odd = once.hi;               \
        CAT(vstore, VL)(twice, 0, moved_to + (j) + VL); \
    }

SINGLE void copy_doubled(SOURCE TENSOR(y), const int accumulate, const SteppedBox box, WORK VALUE_PARAMETER) {
    OPEN_BOX
    OPEN_MOVED
    EACH_ROW {
        if (accumulate || end - begin < VL) {
            for (ulong i = begin; i < end; i++)
                for (int e = 0; e < 2; e++) WRITE(from + i, to + 2 * i + e)
        } else {
            for (ulong i = begin; i + VL <= end; i += VL) VMOVE_TWICE(from + i, to + 2 * i)
            // the last vector overlaps the one in front of it
            if ((end - begin) % VL) VMOVE_TWICE(from + end - VL, to + 2 * (end - VL))
        }
        NEXT_ROW
    }
}

// After the steps 1, 2, ..., VL / 2 rows are columns: a step swaps the lanes with this bit of the rows without it for
// those without it of the rows with it.
#define LOW(step, lane) ((lane) & (step) ? VL + (lane) - (step) : (lane))
#define HIGH(step, lane) ((lane) & (step) ? VL + (lane) : (lane) + (step))
#define LANES_2(F, s, l) F(s, l), F(s, l + 1)
#define LANES_4(F, s, l) LANES_2(F, s, l), LANES_2(F, s, l + 2)
#define LANES_8(F, s, l) LANES_4(F, s, l), LANES_4(F, s, l + 4)
#define LANES_16(F, s, l) LANES_8(F, s, l), LANES_8(F, s, l + 8)
#define EXCHANGE(step, TYPE)                                                                 \
    _Pragma("unroll") for (int i = 0; i < VL; i++) {                                         \
        if (i & step) continue;                                                              \
        const TYPE low = rows[i], high = rows[i + step];                                     \
        rows[i] = __builtin_shufflevector(low, high, CAT(LANES_, VL)(LOW, step, 0));         \
        rows[i + step] = __builtin_shufflevector(low, high, CAT(LANES_, VL)(HIGH, step, 0)); \
    }
#define EXCHANGES(TYPE) CAT(EXCHANGES_, VL)(TYPE)
#define EXCHANGES_2(TYPE) EXCHANGE(1, TYPE)
#define EXCHANGES_4(TYPE) EXCHANGES_2(TYPE) EXCHANGE(2, TYPE)
#define EXCHANGES_8(TYPE) EXCHANGES_4(TYPE) EXCHANGE(4, TYPE)
#define EXCHANGES_16(TYPE) EXCHANGES_8(TYPE) EXCHANGE(8, TYPE)

SINGLE void copy_tiles(SOURCE TENSOR(y), const int accumulate, const SteppedBox box, WORK VALUE_PARAMETER) {
    OPEN_BOX
    const ulong blocks = (size4 + VL * rows_per_item - 1) / (VL * rows_per_item);
    const ulong outer = get_global_id(0) / blocks, first = get_global_id(0) % blocks * VL * rows_per_item;
    OPEN_MOVED
    FIND_ROW(outer * size4)
    // tile by tile along the longer of both axes: whose lines the hardware sees coming
    const ulong last = min(first + VL * rows_per_item, size4);
    const ulong across = (last - first + VL - 1) / VL, along = (length + VL - 1) / VL;
    for (ulong tile = 0; tile < across * along; tile++) {
        const ulong block = first + VL * (across > along ? tile % across : tile / along);
        const ulong begin = VL * (across > along ? tile / across : tile % along);
#if STORAGE == 16
        if (!accumulate && block + VL <= last && begin + VL <= length) {
            movedv rows[VL];
#pragma unroll
            for (int i = 0; i < VL; i++) rows[i] = VMOVED(from + block + (begin + i) * x5);
            EXCHANGES(movedv)
#pragma unroll
            for (int i = 0; i < VL; i++) CAT(vstore, VL)(rows[i], 0, moved_to + (to + (block + i) * y4 + begin));
            continue;
        }
#endif
        if (block + VL <= last && begin + VL <= length) {
            realv rows[VL];
#pragma unroll
            for (int i = 0; i < VL; i++) rows[i] = VLOAD(xs, from + block + (begin + i) * x5);
            EXCHANGES(realv)
#pragma unroll
            for (int i = 0; i < VL; i++) {
                const ulong at = to + (block + i) * y4 + begin;
                if (accumulate) rows[i] += VLOAD(ys, at);
                VSTORE(ys, at, rows[i]);
            }
        } else {
            for (ulong k = block; k < min(block + VL, last); k++)
                for (ulong i = begin; i < min(begin + VL, length); i++) WRITE(from + k + i * x5, to + k * y4 + i)
        }
    }
}
#endif
#else
// ELEMENTS elements a work-item, `counter` the least type that counts all elements: long
// divisions cost more than the copy.
#ifndef GROUP
#define GROUP 256
#endif
#ifndef ELEMENTS
#define ELEMENTS 4
#endif
#ifndef SIDE
#define SIDE 32  // of a tile of copy_turned
#endif
#include "common/raw.cl"
#if LONG
typedef ulong counter;
#else
typedef uint counter;
#endif
// An axis of one place costs nothing.
#define SPLIT_OFF(size, x_step, y_step)              \
    if ((size) > 1) {                                \
        const counter over = rest / (counter)(size); \
        rest -= over * (counter)(size);              \
        from += rest * (x_step);                     \
        to += rest * (y_step);                       \
        rest = over;                                 \
    }
#define PLACE_ROW            \
    SPLIT_OFF(size4, x4, y4) \
    SPLIT_OFF(size3, x3, y3) \
    SPLIT_OFF(size2, x2, y2) \
    SPLIT_OFF(size1, x1, y1) \
    from += rest * x0;       \
    to += rest * y0;

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void copy_elements(
    SOURCE TENSOR(y), const int accumulate, const SteppedBox box, const ulong count VALUE_PARAMETER) {
    OPEN_BOX
    real values[ELEMENTS];
    ulong places[ELEMENTS];
    const counter first = (counter)get_group_id(0) * (GROUP * ELEMENTS) + get_local_id(0);
#pragma unroll
    for (int e = 0; e < ELEMENTS; e++) {
        if (first + e * GROUP < count) {
            counter rest = first + e * GROUP;
            ulong from = x_begin, to = y_begin;
            SPLIT_OFF(length, x5, y5)
            PLACE_ROW
            values[e] = READ(from);
            places[e] = to;
        }
    }
#pragma unroll
    for (int e = 0; e < ELEMENTS; e++) {
        if (first + e * GROUP < count) {
            if (accumulate) values[e] += LOAD(ys, places[e]);
            STORE(ys, places[e], values[e]);
        }
    }
}

#if !FILL
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void copy_turned(
    SOURCE TENSOR(y), const int accumulate, const SteppedBox box, const ulong count VALUE_PARAMETER) {
    OPEN_BOX
    local real tile[SIDE][SIDE + 1];
    const counter across = (size4 + SIDE - 1) / SIDE, along = (length + SIDE - 1) / SIDE;
    const int lane = get_local_id(0) % SIDE, line = get_local_id(0) / SIDE;
    counter rest = get_group_id(0);
    const counter block = rest % across * SIDE;
    rest /= across;
    const counter begin = rest % along * SIDE;
    rest = rest / along * size4;  // the fifth axis stands at 0
    ulong from = x_begin, to = y_begin;
    PLACE_ROW
    for (int i = line; i < SIDE; i += GROUP / SIDE)
        if (begin + i < length && block + lane < size4)
            tile[i][lane] = LOAD(xs, from + block + lane + (begin + i) * x5);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = line; i < SIDE; i += GROUP / SIDE) {
        if (block + i >= size4 || begin + lane >= length) continue;
        const ulong at = to + (block + i) * y4 + begin + lane;
        STORE(ys, at, accumulate ? LOAD(ys, at) + tile[lane][i] : tile[lane][i]);
    }
}
#endif

#if !FILL && STORAGE == 16
// A tile is 2 * SIDE by 2 * SIDE elements. Rows are read by twos into words of local memory; two columns of results are
// two halves of the same words.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void copy_turned_pairs(
    SOURCE TENSOR(y), const int accumulate, const SteppedBox box, const ulong count VALUE_PARAMETER) {
    BOX_SIZES
    local uint tile[2 * SIDE][SIDE + 1];
    const counter across = (size4 + 2 * SIDE - 1) / (2 * SIDE), along = (length + 2 * SIDE - 1) / (2 * SIDE);
    const int lane = get_local_id(0) % SIDE, line = get_local_id(0) / SIDE;
    counter rest = get_group_id(0);
    const counter block = rest % across * (2 * SIDE);
    rest /= across;
    const counter begin = rest % along * (2 * SIDE);
    rest = rest / along * size4;  // the fifth axis stands at 0
    ulong from = x_begin, to = y_begin;
    PLACE_ROW
    global const ushort *xs = (global const ushort *)OPEN(x) + from + block;
    global stored *ys = OPEN(y) + to + block * y4 + begin;
    const bool together = (ulong)xs % 4 == 0, written_together = !accumulate && (ulong)ys % 4 == 0;
#pragma unroll
    for (int i = line; i < 2 * SIDE; i += GROUP / SIDE) {
        if (begin + i >= length || block + 2 * lane >= size4) continue;
        global const ushort *pair = xs + (begin + i) * x5 + 2 * lane;
        tile[i][lane] = together ? *(global const uint *)pair : pair[0] | (uint)pair[1] << 16;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int i = line; i < SIDE; i += GROUP / SIDE) {
        if (block + 2 * i >= size4 || begin + 2 * lane >= length) continue;
        const uint first = tile[2 * lane][i], second = tile[2 * lane + 1][i];
        const uint pairs[2] = {(first & 0xffffu) | second << 16, first >> 16 | (second & 0xffff0000u)};
#pragma unroll
        for (int of = 0; of < 2; of++) {
            global stored *pair = ys + (2 * i + of) * y4 + 2 * lane;
            if (written_together) {
                *(global uint *)pair = pairs[of];
                continue;
            }
            const ushort bits[2] = {pairs[of] & 0xffffu, pairs[of] >> 16};
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (accumulate)
                    STORE(pair, e, LOAD(pair, e) + REAL_OF(bits[e]));
                else
                    ((global ushort *)pair)[e] = bits[e];
            }
        }
    }
}
#endif
#endif
