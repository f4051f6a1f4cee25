// Winograd's backward filter on CPU devices, F(TILE x TILE, TAPS x TAPS), or F(TILE, TAPS) of one row or column:
// stride 1, or 3 x 3 taps with stride 2, whose phases are in transforms.cl.
//
//     dw[out][channel] (+)= G^T ( sum over tiles of (B^T x B) * (A dy A^T) ) G
//
// V         [e][phase of the stride][chunk of WC channels][tile][WC]        transformed source, as in the forward
//           convolution
// Y         [e][block of COLS outputs][tile][COLS]                          transformed gradients
// M         [e][phase of the stride][block of COLS outputs][channel][COLS]  their products, added up over the parts
//           that the tiles are cut into; there are none at elements that only missing taps of a phase depend on
//
// The tiles are taken in parts of tile rows whose V and Y stay in the last level's cache. For each part the
// launches filter_transforms and filter_product follow each other; filter_result turns M into dw.
// With one part, filter_whole takes the place of the last two: M of some channels and a block of outputs stays in a
// core's cache. Where there are few channels, M of all outputs does: then filter_slices takes the place of the first
// two, and V and Y of a few tile rows stay there as well. filter_result adds up one M for each range of tile rows.

#include "common/tickets.cl"
#include "conv/winograd/transforms.cl"

#define SUMMED 64  // tiles whose products are summed before they join the others: one long sum would lose bits

// Transforms the gradient's tiles of a part's tile rows [first, first + count) into Y, for VL outputs from m on.
void transform_gradient(global real *Y, local real *pixels, global const stored *dy, const int m_count, const Grid grid,
                        const TileRows part, const int m, const int first, const int count) {
    const int tile_h = TILES_H, tile_w = TILES_W, columns = COLUMNS;
    const long plane = (long)grid.size_h * grid.size_w, all = (long)grid.batch * m_count * plane;
    const long e_size = (long)((m_count + COLS - 1) / COLS) * part.tiles * COLS + PAD;
    global real *to = Y + ((long)(m / COLS) * part.tiles + first * tile_w) * COLS + m % COLS;
    for (int row = 0; row < count;) {
        const int image = (part.first_row + first + row) / tile_h;
        const PhaseRow begin = phase_row((part.first_row + first + row) % tile_h, grid);
        const int group = min(count - row, begin.left);
        const long from = ((long)image * m_count + m) * plane;
        load_pixels(pixels, dy + from, all - from, min(m_count - m, VL), grid.size_h, grid.size_w, begin.top, DILATE_H,
                    0, group * OUTPUTS_H, columns);
        for (int tile = 0; tile < group * tile_w; tile++) {
            local const real *corner = pixels + (tile / tile_w * OUTPUTS_H * columns + TILE_COLUMN(tile % tile_w)) * VL;
            global real *element = to + (row * tile_w + tile) * COLS;
#define PIXEL(i, j) LOAD_REALS(corner + ((i) * columns + (j) * DILATE_W) * VL)
#define PUT(i, j, value) STORE_REALS(element + ((i) * SIDE_W + (j)) * e_size, value);
            TRANSFORM_2D(TRANSFORM_GRADIENT, TILE, SIDE, PIXEL, PUT)
#undef PIXEL
#undef PUT
        }
        row += group;
    }
}

// V and Y of a part: one work-item transforms block_rows of its tile rows, in VL channels of x or, after all of these,
// in VL outputs of dy.
SINGLE void filter_transforms(CONST_TENSOR(x), TENSOR_OF(real, V), CONST_TENSOR(dy), TENSOR_OF(real, Y),
                              const int channels, const int m_count, const Grid grid, const TileRows part,
                              local real *pixels) {
    const int row = get_global_id(0) * part.block_rows, of_x = (channels + VL - 1) / VL, vector = get_global_id(1);
    const int count = min(part.block_rows, part.rows - row);
    if (vector < of_x) {
        transform_source_rows(OPEN(V), pixels, OPEN(x), channels, grid, part, vector * VL, row, count);
    } else {
        transform_gradient(OPEN(Y), pixels, OPEN(dy), m_count, grid, part, (vector - of_x) * VL, row, count);
    }
}

// M of `rows` channels from c on, in multiply_channels.
#define MULTIPLY_CHANNELS(rows)                                                              \
    {                                                                                        \
        for (int first = 0; first < tile_count; first += SUMMED) {                           \
            realv acc[rows][NV];                                                             \
            SET_ROWS(rows, acc, 0)                                                           \
            global const real *a = V + (long)first * WC + c, *b = Y + (long)first * COLS;    \
            for (int tile = first; tile < min(first + SUMMED, tile_count); tile++) {         \
                PREFETCH_FAR(ahead + tile * WC + min(c / MR, WC / LINE - 1) * LINE);         \
                STEP_ROWS(rows, acc, a[i_], vector_[v_] = LOAD_REALS(b + v_ * VL))           \
                a += WC;                                                                     \
                b += COLS;                                                                   \
            }                                                                                \
            const bool old = add || first;                                                   \
            ROWS_OF(rows) {                                                                  \
                if (c + i_ < count) {                                                        \
                    TILE_VECTORS {                                                           \
                        global real *sum = M + (c + i_) * COLS + v_ * VL;                    \
                        STORE_REALS(sum, old ? LOAD_REALS(sum) + acc[i_][v_] : acc[i_][v_]); \
                    }                                                                        \
                }                                                                            \
            }                                                                                \
        }                                                                                    \
    }

// M[channel][COLS] (+)= the sum over tiles of V[tile][channel of WC] * Y[tile][COLS], of `count` channels. Products
// that follow share Y, but V comes from beyond the L2 cache: each step asks for a line of `ahead`, the next V.
void multiply_channels(global real *M, global const real *V, global const real *Y, const int count,
                       const int tile_count, const bool add, global const real *ahead) {
    const int whole = rows_of_whole_tiles(count);
    int c = 0;
    for (; c < whole; c += MR) MULTIPLY_CHANNELS(MR)
    for (; c < count; c += LAST_MR) MULTIPLY_CHANNELS(LAST_MR)
}

// One work-item multiplies one element e of one chunk of a phase's channels with one block of outputs, over all tiles
// of the part, and adds to the products of the parts before it.
SINGLE void filter_product(TENSOR_OF(const real, V), TENSOR_OF(const real, Y), TENSOR_OF(real, M), const int channels,
                           const int m_count, const Grid grid, const TileRows part) {
    const int tiles = part.tiles, chunk = get_global_id(0), block = get_global_id(1), e = get_global_id(2);
    const int all_chunks = get_global_size(0), chunks = all_chunks / STRIDE_PHASES, m_blocks = get_global_size(1);
    const int phase = chunk / chunks, channel = chunk % chunks * WC;
    if (IS_ZERO(phase, e / SIDE_W, e % SIDE_W)) return;
    const long m_phase = (long)m_blocks * channels * COLS, v_chunk = (long)tiles * WC;
    global const real *v = OPEN(V) + e * (all_chunks * v_chunk + PAD) + chunk * v_chunk;
    multiply_channels(
        OPEN(M) + e * (STRIDE_PHASES * m_phase + PAD) + phase * m_phase + ((long)block * channels + channel) * COLS, v,
        OPEN(Y) + e * ((long)m_blocks * tiles * COLS + PAD) + (long)block * tiles * COLS, min(channels - channel, WC),
        part.rows * TILES_W, part.first_row > 0, v + v_chunk);
}

// A work-item takes a share of all tile rows, in slices of `part.rows`. `scratch` has room for V and Y of a slice,
// `sums` for M.
SINGLE void filter_slices(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR_OF(real, scratch), TENSOR_OF(real, sums),
                          const int channels, const int m_count, const Grid grid, const TileRows part,
                          local real *pixels) {
    const int share = get_global_id(0), shares = get_global_size(0), tiles = part.tiles;
    const int m_blocks = (m_count + COLS - 1) / COLS;
    const long v_phase = (long)((channels + WC - 1) / WC) * tiles * WC, v_size = STRIDE_PHASES * v_phase + PAD,
               y_size = (long)m_blocks * tiles * COLS + PAD, m_phase = (long)m_blocks * channels * COLS,
               m_size = STRIDE_PHASES * m_phase + PAD;
    global real *V = OPEN(scratch) + share * ELEMENTS * (v_size + y_size), *Y = V + ELEMENTS * v_size;
    global real *M = OPEN(sums) + share * ELEMENTS * m_size;
    const int rows = grid.batch * TILES_H;
    const int first = (int)((long)rows * share / shares), last = (int)((long)rows * (share + 1) / shares);
    for (int row = first; row < last; row += part.rows) {
        const int count = min(last - row, part.rows);
        TileRows slice = part;
        slice.first_row = row;
        transform_source(V, pixels, OPEN(x), channels, grid, 0, channels, tiles, row, count, part.block_rows);
        for (int m = 0; m < m_count; m += VL) {
            for (int at = 0; at < count; at += part.block_rows) {
                transform_gradient(Y, pixels, OPEN(dy), m_count, grid, slice, m, at, min(part.block_rows, count - at));
            }
        }
        for (int number = 0; number < ELEMENTS * STRIDE_PHASES; number = products_after(number)) {
            const int e = number / STRIDE_PHASES, phase = number % STRIDE_PHASES;
            for (int block = 0; block < m_blocks; block++) {
                for (int channel = 0; channel < channels; channel += WC) {
                    global const real *v = V + e * v_size + phase * v_phase + (long)(channel / WC) * tiles * WC;
                    multiply_channels(M + e * m_size + phase * m_phase + ((long)block * channels + channel) * COLS, v,
                                      Y + e * y_size + (long)block * tiles * COLS, min(channels - channel, WC),
                                      count * TILES_W, row > first, v);
                }
            }
        }
    }
}

#define CHANNELS 16

// The sum of `copies` vectors that are copy_size apart.
realv sum_of_copies(global const real *from, const int copies, const long copy_size) {
    realv sum = LOAD_REALS(from);
    for (int i = 1; i < copies; i++) sum += LOAD_REALS(from + i * copy_size);
    return sum;
}

// dw of VL outputs from m on and `count` channels from `first` on, up to CHANNELS. M points to the first channel's
// products with m, those of the next channels are COLS apart, those of the next element e_size; there are `copies` of
// M to be added up, one after the other.
void transform_filters(global stored *dw, global const real *M, const long e_size, const int copies,
                       const int accumulate, const int channels, const int m_count, const int m, const int first,
                       const int count) {
    const int lanes = min(m_count - m, VL);
    real taps[VL * (CHANNELS * FILTER_TAPS + VL)];  // [output][channel, tap]
    const int pitch = CHANNELS * FILTER_TAPS + VL;
    const long phase_size = (e_size - PAD) / STRIDE_PHASES;
    for (int c = 0; c < count; c++) {
        realv a[(FILTER_TAPS + VL - 1) / VL * VL], b[VL];
#pragma unroll
        for (int phase = 0; phase < STRIDE_PHASES; phase++) {
            global const real *element = M + phase * phase_size + c * COLS;
#define PRODUCT(i, j) sum_of_copies(element + ((i) * SIDE_W + (j)) * e_size, copies, ELEMENTS * e_size)
#define PUT(i, j, value) \
    if (HAS_TAP(phase, i, j)) a[TAP_OF_KERNEL(phase, i, j)] = value;
            TRANSFORM_2D(TRANSFORM_FILTER, SIDE, TAPS, PRODUCT, PUT)
#undef PRODUCT
#undef PUT
        }
#pragma unroll
        for (int tap = 0; tap < FILTER_TAPS; tap += VL) {
#pragma unroll
            for (int i = FILTER_TAPS - tap; i < VL; i++) a[tap + i] = 0;
            TRANSPOSE((a + tap), b, VL)
#pragma unroll
            for (int i = 0; i < VL; i++) STORE_REALS(taps + i * pitch + c * FILTER_TAPS + tap, a[tap + i]);
        }
    }
    for (int i = 0; i < lanes; i++) {
        global stored *to = dw + ((long)(m + i) * channels + first) * FILTER_TAPS;
        for (int at = 0; at < count * FILTER_TAPS; at += VL) {
            if (at + VL <= count * FILTER_TAPS) {
                const realv value = LOAD_REALS(taps + i * pitch + at);
                VSTORE(to, at, accumulate ? value + VLOAD(to, at) : value);
            } else {
                for (int l = at; l < count * FILTER_TAPS; l++) {
                    STORE(to, l, taps[i * pitch + l] + (accumulate ? LOAD(to, l) : 0));
                }
            }
        }
    }
}

// dw of VL outputs and CHANNELS channels from `copies` of M.
SINGLE void filter_result(TENSOR_OF(const real, M), TENSOR(dw), const int accumulate, const int copies,
                          const int channels, const int m_count) {
    const int m = get_global_id(0) * VL, first = get_global_id(1) * CHANNELS;
    const int m_blocks = (m_count + COLS - 1) / COLS;
    transform_filters(OPEN(dw), OPEN(M) + ((long)(m / COLS) * channels + first) * COLS + m % COLS,
                      (long)STRIDE_PHASES * m_blocks * channels * COLS + PAD, copies, accumulate, channels, m_count, m,
                      first, min(channels - first, CHANNELS));
}

// An item is `range` channels, which divide WC, and a block of outputs; work-items take items by tickets. `slices` has
// room for the products of an item for each of them.
SINGLE void filter_whole(TENSOR_OF(const real, V), TENSOR_OF(const real, Y), TENSOR_OF(real, slices), TENSOR(dw),
                         const int accumulate, const int channels, const int m_count, const Grid grid,
                         const TileRows part, const int range, volatile global int *tickets) {
    const int tiles = part.tiles, m_blocks = (m_count + COLS - 1) / COLS, ranges = (channels + range - 1) / range;
    const int items = m_blocks * ranges, workers = get_global_size(0);
    const long v_phase = (long)((channels + WC - 1) / WC) * tiles * WC, v_size = STRIDE_PHASES * v_phase + PAD,
               y_size = (long)m_blocks * tiles * COLS + PAD, m_phase = range * COLS,
               m_size = STRIDE_PHASES * m_phase + PAD;
    global real *M = OPEN(slices) + get_global_id(0) * ELEMENTS * m_size;
    FOR_ITEMS(share) {
        const int first = share.item % ranges * range, last = min(first + range, channels);
        const int block = share.item / ranges, last_m = min((block + 1) * COLS, m_count);
        global const real *v = OPEN(V) + (long)(first / WC) * tiles * WC + first % WC,
                          *y = OPEN(Y) + (long)block * tiles * COLS;
        for (int number = 0; number < ELEMENTS * STRIDE_PHASES;) {
            const int e = number / STRIDE_PHASES, phase = number % STRIDE_PHASES;
            global const real *source = v + e * v_size + phase * v_phase;
            number = products_after(number);
            multiply_channels(
                M + e * m_size + phase * m_phase, source, y + e * y_size, last - first, part.rows * TILES_W, false,
                v + number / STRIDE_PHASES * v_size + number % STRIDE_PHASES * v_phase);
        }
        for (int m = block * COLS; m < last_m; m += VL) {
            for (int channel = first; channel < last; channel += CHANNELS) {
                transform_filters(OPEN(dw), M + (channel - first) * COLS + m % COLS, m_size, 1, accumulate, channels,
                                  m_count, m, channel, min(last - channel, CHANNELS));
            }
        }
    }
}
