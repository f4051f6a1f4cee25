// Convolution by Fourier transforms of tiles on GPUs: the transforms of pixels, weights and products.
//
// A tile of SIDE x SIDE elements of the source gives `step` outputs along an axis, the others would meet its opposite
// edge (overlap-save). Each point of the transforms is a product of complex matrices, conjugate(u) * v for u of A and v
// of B. It is computed as one of real matrices, by the kernels of conv/gemm_gpu/product.cl, whose depth has real and
// imaginary parts: (Re u, Im u) times (Re v, Im v) is the real part. One operand also has twins, (Im, -Re), which give
// the imaginary part, where they are A's the negative one. Twins are not in memory: the product makes them.
//
// Matrices have `rows` and `pitch`, padded to whole tiles of the product. What pads the depth is zero; what pads rows
// and columns is never looked at. Eight planes' real parts of a point are neighbours, their imaginary parts follow, and
// TOGETHER points are interleaved: [row][pitch / 16][real, imaginary][TOGETHER points][8]. So a work-group writes and
// reads 8 planes of that many points side by side. Products where rows have twins are
// [row / 8][real, imaginary][8][pitch / 8][TOGETHER points][8].
//
// A work-group transforms PLANES planes whose points are neighbours in a matrix: tiles, or channels of the weights.
//
// TOGETHER   points whose matrices are interleaved, a divisor of SIDE / 2
// TWIN_ROWS  of products: 1 where rows have twins, so that imaginary parts have the wrong sign; 0: columns have
// USED       of weights: an upper limit to the taps of a kernel along an axis, 8 or SIDE

#include "conv/grid.cl"
#include "common/epilogue.cl"
#include "common/raw.cl"
#include "conv/fft/transform.cl"

// Where planes and their points are. The fields are the table in core/operators/conv/arguments.py.
//     first, count, filled   the tiles of this part; `filled` of them are written, zeros from `count` on
//     rows, pitch            of a matrix
//     step_h, step_w         outputs of a tile
//     extent_h, extent_w     elements of a tile that are not zero anyway
//     down, across           tiles of a plane
typedef struct {
    FFT_PART_FIELDS
} FftPart;

typedef struct {
    int image, h, w;  // h, w: of its first output
} FftPlace;

FftPlace place_of_tile(const int tile, const FftPart part) {
    if (part.across == 1 && part.down == 1) {
        const FftPlace whole = {tile, 0, 0};
        return whole;
    }
    const int rest = tile / part.across;
    const FftPlace place = {rest / part.down, rest % part.down * part.step_h, tile % part.across * part.step_w};
    return place;
}

#define GROUP __attribute__((reqd_work_group_size(THREADS, 1, 1)))

// Where a row's plane number `column` and a line have their number 0, and elements from number to number.
#define POINT_AT(row, column, line)                                                                            \
    (((long)((line) / TOGETHER) * part.rows + (row)) * TOGETHER * part.pitch + (column) / 8 * (8 * TOGETHER) + \
     (line) % TOGETHER * 8 + (column) % 8)
// Where the real part of a plane is in a row; with TWIN_ROWS, of which row of products it is.
#define COMPLEX(i) ((i) / 8 * 16 + (i) % 8)
#define IMAGINARY (8 * TOGETHER)
#if TWIN_ROWS
#define PRODUCT_AT(row, column, line) POINT_AT(COMPLEX(row), column, line)
#define IMAGINARY_PRODUCT (8 * TOGETHER * part.pitch)
#else
#define PRODUCT_AT(row, column, line) POINT_AT(row, COMPLEX(column), line)
#define IMAGINARY_PRODUCT IMAGINARY
#endif
#define BETWEEN_NUMBERS ((long)HALF * part.rows * part.pitch)
#define BETWEEN_PARTS ((long)(SIDE * HALF + TOGETHER) * part.rows * part.pitch)
#define PUT(k, v) put(to + (k) * next, v);
#define PUT_LAST(i, v) put(to + SIDE * next + 8 * (i), v);

// Writes a number of an operand.
void put(global real *to, const Complex v) {
    to[0] = v.x;
    to[IMAGINARY] = v.y;
}

// Reads a line's points of the products and the last two points, which are the sums of parts, added in order.
IN_PLACE void get_line(Complex *z, Complex *last, global const real *from, const int line, const int parts,
                       const FftPart part) {
    const long next = BETWEEN_NUMBERS;
#pragma unroll
    for (int k = 0; k < SIDE; k++) z[k] = (Complex)(from[k * next], from[k * next + IMAGINARY_PRODUCT]);
    last[0] = last[1] = (Complex)(0, 0);
    if (line == 0)
        for (int i = 0; i < 2; i++)
            last[i] = (Complex)(from[SIDE * next + 8 * i], from[SIDE * next + 8 * i + IMAGINARY_PRODUCT]);
    for (int p = 1; p < parts; p++) {
        from += BETWEEN_PARTS;
#pragma unroll
        for (int k = 0; k < SIDE; k++) z[k] += (Complex)(from[k * next], from[k * next + IMAGINARY_PRODUCT]);
        if (line == 0)
            for (int i = 0; i < 2; i++)
                last[i] += (Complex)(from[SIDE * next + 8 * i], from[SIDE * next + 8 * i + IMAGINARY_PRODUCT]);
    }
#if TWIN_ROWS
#pragma unroll
    for (int k = 0; k < SIDE; k++) z[k].y = -z[k].y;
    for (int i = 0; i < 2; i++) last[i].y = -last[i].y;
#endif
}

// Points of x, or of dy for the gradient of the weights. Global: work-items of blocks of tiles, channels, which are
// zeros from `channels` on.
kernel GROUP void fft_pixels(CONST_TENSOR(x), TENSOR_OF(real, points), const int channels, const Grid grid,
                             const FftPart part) {
    local Complex planes[PLANES * PLANE];
    const int id = get_local_id(0), first = get_group_id(0) * PLANES, channel = get_group_id(1);
    {
        const int tile = first + id / HALF, x = id % HALF;
        const FftPlace place = place_of_tile(part.first + tile, part);
        const int top = place.h + grid.begin_h, left = place.w + grid.begin_w + x;
        const int low = max(0, -top), high = min(part.extent_h, grid.source_h - top);
        const bool any = tile < part.count && channel < channels;
        const bool one = any && x < part.extent_w && (uint)left < (uint)grid.source_w;
        const bool other = any && x + HALF < part.extent_w && (uint)(left + HALF) < (uint)grid.source_w;
        global const stored *from =
            OPEN(x) + (((long)place.image * channels + channel) * grid.source_h + top) * grid.source_w + left;
        Complex z[SIDE];
        UNROLLED
        for (int y = 0; y < SIDE; y++) {
            const bool inside = y >= low && y < high;
            const long at = (long)y * grid.source_w;
            z[y].x = REAL_OF(inside && one ? LOAD_RAW(from, at) : (raw)0);
            z[y].y = REAL_OF(inside && other ? LOAD_RAW(from, at + HALF) : (raw)0);
        }
        columns_forward(z, planes + id / HALF * PLANE + x);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int at = id % PLANES, line = id / PLANES;
    if (first + at < part.filled) {
        const long next = BETWEEN_NUMBERS;
        global real *to = OPEN(points) + POINT_AT(channel, COMPLEX(first + at), line);
        local const Complex *of_line = planes + at * PLANE + line * ROW;
        Complex z[SIDE];
        UNROLLED
        for (int x = 0; x < SIDE; x++) z[x] = of_line[x];
        LINE_FORWARD(z, line, SIDE, PUT, PUT_LAST)
    }
}

// cos and sin of 2 * pi * j / SIDE in local memory.
#define FILL_ANGLES \
    for (int j = id; j < SIDE; j += THREADS) angles[j] = turns[j * (32 / SIDE)];

#define KERNEL (USED * USED + 4)

// Points of w. Global: work-items of blocks of outputs, channels: from `channels` on they are zeros. With `flip`, w is
// (channels, outputs, taps) and its kernels are turned by 180 degrees, as backward data needs them; else it is
// (outputs, channels, taps). Columns are short: their transforms are sums over the taps.
kernel GROUP void fft_weights(CONST_TENSOR(w), TENSOR_OF(real, points), const int channels, const int outputs,
                              const int flip, const Grid grid, const FftPart part) {
    local real kernels[PLANES * KERNEL];  // in rows of USED taps
    local Complex angles[SIDE];
    const int id = get_local_id(0), first = get_group_id(0) * PLANES, channel = get_group_id(1);
    const int taps_h = grid.taps_h, taps_w = grid.taps_w, taps = taps_h * taps_w;
    FILL_ANGLES
    {
        const int p = id / HALF, output = first + p;
        const bool wanted = output < outputs && channel < channels;
        global const stored *from =
            OPEN(w) + (flip ? (long)channel * outputs + output : (long)output * channels + channel) * taps;
        for (int i = id % HALF; i < taps_h * USED; i += HALF) {
            const int x = i % USED, tap = i / USED * taps_w + x;
            kernels[p * KERNEL + i] = wanted && x < taps_w ? LOAD(from, flip ? taps - 1 - tap : tap) : 0;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int at = id % PLANES, line = id / PLANES;
    if (first + at < outputs) {
        const long next = BETWEEN_NUMBERS;
        global real *to = OPEN(points) + POINT_AT(channel, COMPLEX(first + at), line);
        Complex z[SIDE];
        UNROLLED
        for (int x = 0; x < SIDE; x++) z[x] = (Complex)(0, 0);
        for (int y = 0; y < taps_h; y++) {
            local const real *row = kernels + at * KERNEL + y * USED;
            // line 0 and, as its imaginary part, line SIDE / 2
            const Complex angle = line > 0 ? CONJUGATE(angles[y * line % SIDE]) : (Complex)(1, y % 2 ? -1 : 1);
            UNROLLED
            for (int x = 0; x < USED; x++) z[x] = fma((Complex)(row[x], row[x]), angle, z[x]);
        }
        LINE_FORWARD(z, line, USED, PUT, PUT_LAST)
    }
}

// Writes column x of a tile, the elements .part_of of z. ADD adds what is there.
#define STORE_COLUMN(part_of, x, ADD)                                                \
    {                                                                                \
        const int height = (x) < min(part.step_w, grid.size_w - place.w) ? rows : 0; \
        UNROLLED                                                                     \
        for (int y = 0; y < SIDE; y++)                                               \
            if (y < height) {                                                        \
                const long at = origin + (long)y * grid.size_w + (x);                \
                real value = fma(z[PLACE(y)].part_of, SCALE, start);                 \
                value = EPILOGUE_ELEMENT(value, channel, at);                        \
                ADD(value, at);                                                      \
                STORE(target, at, value);                                            \
            }                                                                        \
    }
#define ADD_NOTHING(value, at)
#define ADD_TARGET(value, at) value += LOAD(target, at)
#define ADD_IF_ASKED(value, at) \
    if (accumulate) value += LOAD(target, at)
#define SCALE (1.0f / (SIDE * SIDE))

// y of the products. Global: work-items of blocks of tiles, outputs.
kernel GROUP void fft_result(TENSOR_OF(const real, products), CONST_TENSOR(bias), TENSOR(y), const int has_bias,
                             const int accumulate, const int outputs, const Grid grid,
                             const FftPart part EPILOGUE_PARAMETERS) {
    local Complex planes[PLANES * PLANE];
    OPEN_EPILOGUE
    const int id = get_local_id(0), first = get_group_id(0) * PLANES, channel = get_group_id(1);
    {
        const int at = id % PLANES, line = id / PLANES;
        Complex z[SIDE], last[2];
        // planes after the last tile are that tile's, and not stored
        get_line(z, last, OPEN(products) + PRODUCT_AT(channel, min(first + at, part.count - 1), line), line, 1, part);
        line_back(z, last, line, planes + at * PLANE + line * ROW, SIDE);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int tile = first + id / HALF, x = id % HALF;
    const real start = has_bias ? LOAD(OPEN(bias), channel) : 0;
    global stored *target = OPEN(y);
    Complex z[SIDE];
    columns_back(z, planes + id / HALF * PLANE + x);
    const FftPlace place = place_of_tile(part.first + tile, part);
    const int rows = tile < part.count ? min(part.step_h, grid.size_h - place.h) : 0;
    const long origin = (((long)place.image * outputs + channel) * grid.size_h + place.h) * grid.size_w + place.w;
#ifdef EPILOGUE  // its code is there for every element
    STORE_COLUMN(y, x, ADD_IF_ASKED)
    STORE_COLUMN(x, x + HALF, ADD_IF_ASKED)
#else
    if (accumulate) {
        STORE_COLUMN(y, x, ADD_TARGET)
        STORE_COLUMN(x, x + HALF, ADD_TARGET)
    } else {
        STORE_COLUMN(y, x, ADD_NOTHING)
        STORE_COLUMN(x, x + HALF, ADD_NOTHING)
    }
#endif
}

#define FILTER_ROW (USED + 1)
#define FILTER_PLANE PLANE_OF(FILTER_ROW)

// dw of the products, which are those of all points for each part; the parts are added in order. Global: work-items of
// blocks of channels, outputs. Few elements of columns are wanted: they are sums over the lines.
kernel GROUP void fft_filter(TENSOR_OF(const real, products), TENSOR(dw), const int accumulate, const int channels,
                             const int parts, const Grid grid, const FftPart part) {
    local Complex planes[PLANES * FILTER_PLANE], angles[SIDE];
    const int id = get_local_id(0), first = get_group_id(0) * PLANES, output = get_group_id(1);
    FILL_ANGLES
    {
        const int at = id % PLANES, line = id / PLANES;
        Complex z[SIDE], last[2];
        get_line(z, last, OPEN(products) + PRODUCT_AT(output, min(first + at, channels - 1), line), line, parts, part);
        line_back(z, last, line, planes + at * FILTER_PLANE + line * FILTER_ROW, USED);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int taps_w = grid.taps_w, taps = grid.taps_h * taps_w;
    for (int i = id; i < min(PLANES, channels - first) * taps; i += THREADS) {
        const int p = i / taps, tap = i % taps, y = tap / taps_w, x = tap % taps_w;
        local const Complex *column = planes + p * FILTER_PLANE + x;
        real sum = y % 2 ? column[0].x - column[0].y : column[0].x + column[0].y, others = 0;
        UNROLLED
        for (int k = 1; k < HALF; k++) {
            const Complex number = column[k * FILTER_ROW], angle = angles[k * y % SIDE];
            others = fma(number.x, angle.x, fma(-number.y, angle.y, others));
        }
        real value = (sum + 2 * others) * SCALE;
        global stored *to = OPEN(dw) + ((long)output * channels + first) * taps + i;
        if (accumulate) value += LOAD(to, 0);
        STORE(to, 0, value);
    }
}
