// Convolution by Fourier transforms of tiles on GPUs: the transforms of pixels, weights and products.
//
// A tile of SIDE x SIDE elements of the source gives `step` outputs along an axis, the others would meet its opposite
// edge (overlap-save). Each point of the transforms is a product of complex matrices, conjugate(u) * v for u of A and v
// of B. It is computed as one of real matrices, by the conv_gemm of conv/gemm_gpu/gemm.cl, whose depth has real parts,
// then imaginary ones: (Re u, Im u) times (Re v, Im v) is the real part. One operand also has twins, (Im, -Re), which
// give the imaginary part, where they are A's the negative one. Memory has (Re, Im, -Re), so a twin is the second and
// third of these. Matrices have `rows` and `pitch`, padded to whole tiles of the product. What pads the depth is zero;
// what pads rows and columns is never looked at. Those of four points are interleaved, [row][pitch / 8][4 points][8], so
// that a work-group writes and reads 8 planes of 4 points side by side.
//
// A work-group transforms PLANES planes whose points are neighbours in a matrix: tiles, or channels of the weights.

#include "conv/grid.cl"
#include "common/epilogue.cl"
#include "conv/fft/transform.cl"

// Where planes and their points are. The fields are the table in core/operators/conv/arguments.py.
//     first, count, filled   the tiles of this part; `filled` of them are written, zeros from `count` on
//     rows, pitch            of a matrix
//     imaginary, negative    elements from a real part to its imaginary part and to its negative (0: there is none)
//     conjugate              1: imaginary parts of the products are negative
//     step_h, step_w         outputs of a tile
//     extent_h, extent_w     elements of a tile that are not zero anyway
typedef struct {
    FFT_PART_FIELDS
} FftPart;

typedef struct {
    int image, h, w;  // h, w: of its first output
} FftPlace;

FftPlace place_of_tile(const int tile, const Grid grid, const FftPart part) {
    const int across = (grid.size_w + part.step_w - 1) / part.step_w;
    const int down = (grid.size_h + part.step_h - 1) / part.step_h;
    const int rest = tile / across;
    const FftPlace place = {rest / down, rest % down * part.step_h, tile % across * part.step_w};
    return place;
}

#define GROUP kernel __attribute__((reqd_work_group_size(THREADS, 1, 1)))

// Writes a number of an operand.
void put(global real *to, const Complex v, const FftPart part) {
    to[0] = v.x;
    to[part.imaginary] = v.y;
    if (part.negative) to[part.negative] = -v.x;
}

// Elements of plane p in local memory: VALUE of (y, x), or 0 where it is not WANTED. All work-items do this together.
#define FILL_PLANE(p, WANTED, VALUE)                                                         \
    UNROLLED                                                                                 \
    for (int i = 0; i < SIDE * SIDE / THREADS; i++) {                                        \
        const int y = (id + i * THREADS) / SIDE, x = id % SIDE;                              \
        planes[(p) * PLANE + y * ROW + x] = (WANTED) ? (VALUE) : 0;                          \
    }

// Where a row's plane number `column` and a work-item's line have their number 0, and elements from number to number.
#define POINT_AT(row, column) \
    (((long)(line / 4) * part.rows + (row)) * 4 * part.pitch + (column) / 8 * 32 + line % 4 * 8 + (column) % 8)
#define BETWEEN_NUMBERS ((long)HALF * part.rows * part.pitch)

// Transforms the planes; each work-item has a plane and a line, of which the first `used` are not zero, `to` and `next`.
#define TRANSFORM_AND_PUT(used, wanted)                                         \
    barrier(CLK_LOCAL_MEM_FENCE);                                               \
    if (line < (used)) rows_forward(planes + at * PLANE, line);                 \
    barrier(CLK_LOCAL_MEM_FENCE);                                               \
    if (wanted) COLUMN_FORWARD(planes + at * PLANE, line, PUT, PUT_LAST)
#define PUT(k, v) put(to + (k) * next, v, part);
#define PUT_LAST(i, v) put(to + SIDE * next + 8 * (i), v, part);

// The inverse, of the sums of parts; `from` points to a work-item's number 0.
#define GET_AND_TRANSFORM(parts)                                                \
    COLUMN_BACK(planes + at * PLANE, line, GET, GET_LAST)                       \
    barrier(CLK_LOCAL_MEM_FENCE);                                               \
    rows_back(planes + at * PLANE, line);                                       \
    barrier(CLK_LOCAL_MEM_FENCE);
#define PART ((long)(SIDE * HALF + 4) * part.rows * part.pitch)
#define GET(k) sum_of_parts(from + (k) * next, PART, parts, part)
#define GET_LAST(i) sum_of_parts(from + SIDE * next + 8 * (i), PART, parts, part)
#define SCALE (1.0f / (SIDE * SIDE))

// A number of the products in parts, `next` elements from part to part, which are added in order.
Complex sum_of_parts(global const real *from, const long next, const int parts, const FftPart part) {
    Complex sum = (Complex)(from[0], from[part.imaginary]);
    for (int i = 1; i < parts; i++) sum += (Complex)(from[i * next], from[i * next + part.imaginary]);
    return part.conjugate ? CONJUGATE(sum) : sum;
}

// Points of x, or of dy for the gradient of the weights. Global: work-items of blocks of tiles, channels, which are
// zeros from `channels` on.
GROUP void fft_pixels(CONST_TENSOR(x), TENSOR_OF(real, points), const int channels, const Grid grid,
                      const FftPart part) {
    local real planes[PLANES * PLANE];
    const int id = get_local_id(0), at = id % PLANES, line = id / PLANES;
    const int first = get_group_id(0) * PLANES, channel = get_group_id(1);
    const long plane_size = (long)grid.source_h * grid.source_w;
    for (int p = 0; p < PLANES; p++) {
        const FftPlace place = place_of_tile(part.first + first + p, grid, part);
        const int top = place.h + grid.begin_h, left = place.w + grid.begin_w;
        const int extent_h = first + p < part.count && channel < channels ? part.extent_h : 0;
        global const stored *from = OPEN(x) + ((long)place.image * channels + channel) * plane_size;
        FILL_PLANE(p,
                   y < extent_h && x < part.extent_w && (uint)(top + y) < (uint)grid.source_h &&
                       (uint)(left + x) < (uint)grid.source_w,
                   LOAD(from, (long)(top + y) * grid.source_w + left + x))
    }
    const long next = BETWEEN_NUMBERS;
    global real *to = OPEN(points) + POINT_AT(channel, first + at);
    TRANSFORM_AND_PUT(SIDE, first + at < part.filled)
}

// Points of w. Global: work-items of blocks of outputs, channels: from `channels` on they are zeros. With `flip`, w is
// (channels, outputs, taps) and its kernels are turned by 180 degrees, as backward data needs them; else it is
// (outputs, channels, taps).
GROUP void fft_weights(CONST_TENSOR(w), TENSOR_OF(real, points), const int channels, const int outputs, const int flip,
                       const Grid grid, const FftPart part) {
    local real planes[PLANES * PLANE];
    const int id = get_local_id(0), at = id % PLANES, line = id / PLANES;
    const int first = get_group_id(0) * PLANES, channel = get_group_id(1);
    const int taps = grid.taps_h * grid.taps_w;
    for (int p = 0; p < PLANES; p++) {
        const int output = first + p;
        const int taps_h = output < outputs && channel < channels ? grid.taps_h : 0;
        global const stored *from =
            OPEN(w) + (flip ? (long)channel * outputs + output : (long)output * channels + channel) * taps;
        FILL_PLANE(p, y < taps_h && x < grid.taps_w,
                   LOAD(from, flip ? taps - 1 - y * grid.taps_w - x : y * grid.taps_w + x))
    }
    const long next = BETWEEN_NUMBERS;
    global real *to = OPEN(points) + POINT_AT(channel, first + at);
    TRANSFORM_AND_PUT(grid.taps_h, first + at < outputs)
}

// y of the products. Global: work-items of blocks of tiles, outputs.
GROUP void fft_result(TENSOR_OF(const real, products), CONST_TENSOR(bias), TENSOR(y), const int has_bias,
                      const int accumulate, const int outputs, const Grid grid, const FftPart part
                      EPILOGUE_PARAMETERS) {
    local real planes[PLANES * PLANE];
    OPEN_EPILOGUE
    const int id = get_local_id(0), at = id % PLANES, line = id / PLANES;
    const int first = get_group_id(0) * PLANES, channel = get_group_id(1);
    const long next = BETWEEN_NUMBERS;
    // planes after the last tile are that tile's, and not stored
    global const real *from = OPEN(products) + POINT_AT(channel, min(first + at, part.count - 1));
    const int parts = 1;
    GET_AND_TRANSFORM(parts)
    const real start = has_bias ? LOAD(OPEN(bias), channel) : 0;
    global stored *target = OPEN(y);
    for (int p = 0; p < min(PLANES, part.count - first); p++) {
        const FftPlace place = place_of_tile(part.first + first + p, grid, part);
        const int height = min(part.step_h, grid.size_h - place.h), width = min(part.step_w, grid.size_w - place.w);
        const long origin = (((long)place.image * outputs + channel) * grid.size_h + place.h) * grid.size_w + place.w;
        for (int i = id; i < height * SIDE; i += THREADS) {
            const int row = i / SIDE, column = i % SIDE;
            if (column >= width) continue;
            const long to = origin + (long)row * grid.size_w + column;
            real value = fma(planes[p * PLANE + row * ROW + column], SCALE, start);
            value = EPILOGUE_ELEMENT(value, channel, to);
            if (accumulate) value += LOAD(target, to);
            STORE(target, to, value);
        }
    }
}

// dw of the products, which are those of all points for each part; the parts are added in order. Global: work-items of blocks
// of channels, outputs.
GROUP void fft_filter(TENSOR_OF(const real, products), TENSOR(dw), const int accumulate, const int channels,
                      const int parts, const Grid grid, const FftPart part) {
    local real planes[PLANES * PLANE];
    const int id = get_local_id(0), at = id % PLANES, line = id / PLANES;
    const int first = get_group_id(0) * PLANES, output = get_group_id(1);
    const long next = BETWEEN_NUMBERS;
    global const real *from = OPEN(products) + POINT_AT(output, min(first + at, channels - 1));
    GET_AND_TRANSFORM(parts)
    const int taps = grid.taps_h * grid.taps_w;
    for (int p = 0; p < min(PLANES, channels - first); p++) {
        global stored *to = OPEN(dw) + ((long)output * channels + first + p) * taps;
        for (int i = id; i < grid.taps_h * SIDE; i += THREADS) {
            const int row = i / SIDE, column = i % SIDE, tap = row * grid.taps_w + column;
            if (column >= grid.taps_w) continue;
            real value = planes[p * PLANE + row * ROW + column] * SCALE;
            if (accumulate) value += LOAD(to, tap);
            STORE(to, tap, value);
        }
    }
}
