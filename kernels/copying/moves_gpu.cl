// Copies on GPUs: what moves is units of UNIT neighbouring elements, as they are, or element by element where they add
// up.
//
//   move_box    y[at] = x[at] over a box of at most 6 axes, or value where FILL
//   join_parts  y (outer, sum of the extents) = PARTS tensors side by side; extents are in units
//   pad_rows    y = x with something around it, of at most 6 axes; y and x are contiguous
//
// A work-item takes ELEMENTS units, a work-group apart, and reads all of them before it writes. Places are 32-bit
// numbers, which are split into axes by multiplication, as in common/divide.cl.
//
// UNIT  elements that move together: 4 where all sizes and distances are multiples of it; 1. Those of pad_rows are
//       neighbours in y, of a row
// SPLAT  of move_box: the elements of a unit of y are one of x
// AXES  axes of the box, of which axis 0 is the outermost; `box` has the distances of all, in elements, and the sizes
//       of the others in units

#ifndef UNIT
#define UNIT 4
#endif
#ifndef ELEMENTS
#define ELEMENTS 2
#endif
#ifndef GROUP
#define GROUP 128
#endif
#ifndef AXES
#define AXES 6
#endif
#ifndef FILL
#define FILL 0
#endif
#ifndef PARTS
#define PARTS 2
#endif
#ifndef SPLAT
#define SPLAT 0
#endif
#ifndef MODE
#define MODE 0  // of pad_rows: 0 value, 1 the border's element, 2 the mirror image
#endif

// The bits of elements.
#if STORAGE == 16
typedef ushort bits;
#define BITS ushort
#elif STORAGE == 64
typedef ulong bits;
#define BITS ulong
#else
typedef uint bits;
#define BITS uint
#endif
#if UNIT > 1
typedef CAT(BITS, UNIT) unit;
#else
typedef bits unit;
#endif

#ifdef BOX_FIELDS
typedef struct {
    BOX_FIELDS
} Box;
#endif
#ifdef PART_FIELDS
typedef struct {
    PART_FIELDS
} Part;
#endif

// Takes the place along an axis off `rest`.
#define TAKE_OFF(axis)                                                                                         \
    const uint over##axis = box.factor##axis ? mul_hi(rest, (uint)box.factor##axis) >> box.shift##axis : rest; \
    const int at##axis = (int)(rest - over##axis * (uint)box.size##axis);                                      \
    rest = over##axis;

// Does a step for the innermost axis, and one for each between it and the outermost, from the inside out.
#if AXES > 5
#define INNERMOST(STEP) STEP(5)
#define MIDDLE_AXES(STEP) STEP(4) STEP(3) STEP(2) STEP(1)
#elif AXES > 4
#define INNERMOST(STEP) STEP(4)
#define MIDDLE_AXES(STEP) STEP(3) STEP(2) STEP(1)
#elif AXES > 3
#define INNERMOST(STEP) STEP(3)
#define MIDDLE_AXES(STEP) STEP(2) STEP(1)
#elif AXES > 2
#define INNERMOST(STEP) STEP(2)
#define MIDDLE_AXES(STEP) STEP(1)
#elif AXES > 1
#define INNERMOST(STEP) STEP(1)
#define MIDDLE_AXES(STEP)
#else
#define INNERMOST(STEP)
#define MIDDLE_AXES(STEP)
#endif
#define INNER_AXES(STEP) INNERMOST(STEP) MIDDLE_AXES(STEP)
#define MOVE_ALONG(axis)            \
    TAKE_OFF(axis)                  \
    from += at##axis * box.x##axis; \
    to += at##axis * box.y##axis;
#define FILL_ALONG(axis) \
    TAKE_OFF(axis)       \
    to += at##axis * box.y##axis;
#define MAP_ALONG(axis) \
    TAKE_OFF(axis)      \
    MAP(axis, at##axis)
#define MAP_UNIT_ALONG(axis) \
    TAKE_OFF(axis)           \
    MAP_UNIT(axis, at##axis)

#define EACH_UNIT for (int e = 0; e < ELEMENTS; e++)
#define NUMBER (first + e * GROUP)

// A real as an element's bits.
bits bits_of(const real value) {
#ifdef BRAIN
    return narrow(value);
#elif STORAGE == 16
    ushort found;
    vstore_half_rte(value, 0, (half *)&found);
    return found;
#elif STORAGE == 64
    return as_ulong(value);
#else
    return as_uint(value);
#endif
}

// Whether units at these addresses can be moved at once.
#define ALIGNED(p) ((ulong)(p) % sizeof(unit) == 0)
#if SPLAT
#define SOURCE_OF(i) 0
#define UNIT_AT(p) ((unit)(*(global const bits *)(p)))
#define SOURCE_ALIGNED(p) true
#else
#define SOURCE_OF(i) (i)
#define UNIT_AT(p) (*(global const unit *)(p))
#define SOURCE_ALIGNED(p) ALIGNED(p)
#endif

// Adds UNIT elements.
void add_unit(global const stored *x, global stored *y) {
    for (int i = 0; i < UNIT; i++) {
        const real sum = LOAD(x, SOURCE_OF(i)) + LOAD(y, i);
        STORE(y, i, sum);
    }
}

// Moves the units that WHERE has found, from `sources` to `places` of y.
// clang-format off
#define MOVE_ALL(X, Y)                                                              \
    if (!accumulate && SOURCE_ALIGNED(X) && ALIGNED(Y)) {                           \
        unit values[ELEMENTS];                                                      \
        _Pragma("unroll") EACH_UNIT                                                 \
            if (NUMBER < count) values[e] = UNIT_AT((X) + sources[e]);              \
        _Pragma("unroll") EACH_UNIT                                                 \
            if (NUMBER < count) *(global unit *)((Y) + places[e]) = values[e];      \
    } else {                                                                        \
        EACH_UNIT if (NUMBER < count) {                                             \
            global const stored *x = (X) + sources[e];                              \
            global stored *y = (Y) + places[e];                                     \
            if (accumulate)                                                         \
                add_unit(x, y);                                                     \
            else                                                                    \
                for (int i = 0; i < UNIT; i++)                                      \
                    ((global bits *)y)[i] = ((global const bits *)x)[SOURCE_OF(i)]; \
        }                                                                           \
    }
// clang-format on

#ifdef BOX_FIELDS
#if !FILL
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void move_box(
    CONST_TENSOR(x), TENSOR(y), const int accumulate, const ulong x_begin, const ulong y_begin, const uint count,
    const Box box) {
    const uint first = (uint)get_group_id(0) * (GROUP * ELEMENTS) + get_local_id(0);
    int sources[ELEMENTS], places[ELEMENTS];
#pragma unroll
    EACH_UNIT {
        uint rest = min(NUMBER, count - 1);
        int from = 0, to = 0;
        INNER_AXES(MOVE_ALONG)
        sources[e] = from + (int)rest * box.x0;
        places[e] = to + (int)rest * box.y0;
    }
    global const stored *xs = OPEN(x) + x_begin;
    global stored *ys = OPEN(y) + y_begin;
    MOVE_ALL(xs, ys)
}
#else
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void fill_box(
    TENSOR(y), const int accumulate, const ulong y_begin, const uint count, const Box box, const real value) {
    const uint first = (uint)get_group_id(0) * (GROUP * ELEMENTS) + get_local_id(0);
    global stored *ys = OPEN(y) + y_begin;
    const bool together = !accumulate && ALIGNED(ys);
    const unit values = bits_of(value);
#pragma unroll
    EACH_UNIT {
        if (NUMBER >= count) continue;
        uint rest = NUMBER;
        int to = 0;
        INNER_AXES(FILL_ALONG)
        to += (int)rest * box.y0;
        if (together) {
            *(global unit *)(ys + to) = values;
        } else {
            for (int i = 0; i < UNIT; i++) {
                const real new = accumulate ? value + LOAD(ys, to + i) : value;
                STORE(ys, to + i, new);
            }
        }
    }
}
#endif

// The element of x along an axis for one of y; -1 outside of it, where the value goes.
#if MODE == 0
#define MIRROR(axis, at) ((at) < box.inside##axis ? (at) : -1)
#elif MODE == 1
#define MIRROR(axis, at) clamp(at, 0, box.inside##axis - 1)
#else
#define MIRROR(axis, at) min(abs(at), 2 * (box.inside##axis - 1) - abs(at))
#endif
#define MAP(axis, at)                                                 \
    {                                                                 \
        const int inner = MIRROR(axis, (int)(at) - box.before##axis); \
        outside |= inner < 0;                                         \
        from += inner * box.x##axis;                                  \
    }

#if MODE == 0
#define VALUE_PARAMETER , const real value
#define VALUE value
#else
#define VALUE_PARAMETER
#define VALUE 0
#endif

// The elements of a unit, from the unit `at` of an axis on.
#define MAP_UNIT(axis, at)                                                       \
    for (int i = 0; i < UNIT; i++) {                                             \
        const int inner = MIRROR(axis, (int)(at) * UNIT + i - box.before##axis); \
        beyond[i] = inner < 0;                                                   \
        inside[i] = inner * box.x##axis;                                         \
    }
// The number of an element that was read.
#ifdef BRAIN
#define REAL_OF_BITS(bits) widen(bits)
#elif STORAGE == 16
#define REAL_OF_BITS(bits) vload_half(0, (const half *)&(bits))
#elif STORAGE == 64
#define REAL_OF_BITS(bits) as_double(bits)
#else
#define REAL_OF_BITS(bits) as_float(bits)
#endif

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pad_rows(
    CONST_TENSOR(x), TENSOR(y), const int accumulate, const uint count, const Box box VALUE_PARAMETER) {
    const uint first = (uint)get_group_id(0) * (GROUP * ELEMENTS) + get_local_id(0);
    global const stored *xs = OPEN(x);
    global stored *ys = OPEN(y);
    bits values[ELEMENTS][UNIT];
    const bits around = bits_of(VALUE);
#pragma unroll
    EACH_UNIT {
        uint rest = min(NUMBER, count - 1);
        int from = 0, inside[UNIT];
        bool outside = false, beyond[UNIT];
#if AXES > 1
        INNERMOST(MAP_UNIT_ALONG)
        MIDDLE_AXES(MAP_ALONG)
        MAP(0, rest)
#else
        MAP_UNIT(0, rest)
#endif
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            values[e][i] = outside || beyond[i] ? around : ((global const bits *)xs)[from + inside[i]];
    }
    const bool together = !accumulate && ALIGNED(ys);
#pragma unroll
    EACH_UNIT {
        if (NUMBER >= count) continue;
        global stored *to = ys + (ulong)NUMBER * UNIT;
        if (together) {
#if UNIT == 2
            *(global unit *)to = (unit)(values[e][0], values[e][1]);
#else
            *(global unit *)to = values[e][0];
#endif
            continue;
        }
        for (int i = 0; i < UNIT; i++) {
            if (accumulate) {
                const real new = LOAD(to, i) + REAL_OF_BITS(values[e][i]);
                STORE(to, i, new);
            } else {
                ((global bits *)to)[i] = values[e][i];
            }
        }
    }
}
#endif

#ifdef PART_FIELDS
#define PART(i) CONST_TENSOR(x##i), const Part part##i,
#define CHOOSE(i)                       \
    if (group >= part##i.first_group) { \
        xs = OPEN(x##i);                \
        box = part##i;                  \
    }

// clang-format off
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void join_parts(
    PART(0)
#if PARTS > 1
    PART(1)
#endif
#if PARTS > 2
    PART(2)
#endif
#if PARTS > 3
    PART(3)
#endif
#if PARTS > 4
    PART(4)
#endif
#if PARTS > 5
    PART(5)
#endif
#if PARTS > 6
    PART(6)
#endif
#if PARTS > 7
    PART(7)
#endif
    TENSOR(y), const int accumulate, const int pitch) {
    // clang-format on
    const int group = get_group_id(0);
    global const stored *xs = OPEN(x0);
    Part box = part0;
#if PARTS > 1
    CHOOSE(1)
#endif
#if PARTS > 2
    CHOOSE(2)
#endif
#if PARTS > 3
    CHOOSE(3)
#endif
#if PARTS > 4
    CHOOSE(4)
#endif
#if PARTS > 5
    CHOOSE(5)
#endif
#if PARTS > 6
    CHOOSE(6)
#endif
#if PARTS > 7
    CHOOSE(7)
#endif
    const uint first = (uint)(group - box.first_group) * (GROUP * ELEMENTS) + get_local_id(0), count = box.count;
    global stored *ys = OPEN(y) + box.begin;
    int sources[ELEMENTS], places[ELEMENTS];
#pragma unroll
    EACH_UNIT {
        uint rest = min(NUMBER, count - 1);
        sources[e] = rest * UNIT;
        TAKE_OFF(1)
        places[e] = (int)rest * pitch + at1 * UNIT;
    }
    MOVE_ALL(xs, ys)
}
#endif
