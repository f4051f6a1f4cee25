// Winograd's backward filter on CPU devices, F(TILE x TILE, TAPS x TAPS), or F(TILE, TAPS) of
// one row or column: stride 1.
//
//     dw[out][channel] (+)= G^T ( sum over tiles of (B^T x B) * (A dy A^T) ) G
//
// V         [e][chunk of WC channels][tile][WC]        transformed source, as in the forward convolution
// Y         [e][block of COLS outputs][tile][COLS]     transformed gradients
// M         [e][block of COLS outputs][channel][COLS]  their products, added up over the parts
//           that the tiles are cut into
//
// The tiles are taken in parts of tile rows whose V and Y stay in the last level's cache. For each part the
// launches winograd_source, filter_gradient and filter_product follow each other; filter_result turns M into dw.

#include "conv/winograd/transforms.cl"

#define SUMMED 64  // tiles whose products are summed before they join the others: one long sum would lose bits

// One work-item transforms block_rows of a part's tile rows, in VL outputs of dy.
SINGLE void filter_gradient(CONST_TENSOR(dy), TENSOR_OF(real, Y), const int m_count, const Grid grid,
                            const TileRows part, local real *pixels) {
    const int first = get_global_id(0) * part.block_rows, count = min(part.block_rows, part.rows - first);
    const int tile_h = TILES_H, tile_w = TILES_W, m = get_global_id(1) * VL, columns = COLUMNS;
    const long plane = (long)grid.size_h * grid.size_w, all = (long)grid.batch * m_count * plane;
    const long e_size = (long)((m_count + COLS - 1) / COLS) * part.tiles * COLS + PAD;
    global real *to = OPEN(Y) + ((long)(m / COLS) * part.tiles + first * tile_w) * COLS + m % COLS;
    for (int row = 0; row < count;) {
        const int image = (part.first_row + first + row) / tile_h;
        const PhaseRow begin = phase_row((part.first_row + first + row) % tile_h, grid);
        const int group = min(count - row, begin.left);
        const long from = ((long)image * m_count + m) * plane;
        load_pixels(pixels, OPEN(dy) + from, all - from, min(m_count - m, VL), grid.size_h, grid.size_w, begin.top,
                    DILATE_H, 0, group * OUTPUTS_H, columns);
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

// M of `rows` channels from c on, in filter_product.
#define MULTIPLY_CHANNELS(rows)                                                              \
    {                                                                                        \
        for (int first = 0; first < tile_count; first += SUMMED) {                           \
            realv acc[rows][NV];                                                             \
            SET_ROWS(rows, acc, 0)                                                           \
            global const real *a = vs + (long)first * WC + c, *b = ys + (long)first * COLS;  \
            for (int tile = first; tile < min(first + SUMMED, tile_count); tile++) {         \
                STEP_ROWS(rows, acc, a[i_], vector_[v_] = LOAD_REALS(b + v_ * VL))           \
                a += WC;                                                                     \
                b += COLS;                                                                   \
            }                                                                                \
            const bool old = part.first_row || first;                                        \
            ROWS_OF(rows) {                                                                  \
                if (c + i_ < count) {                                                        \
                    TILE_VECTORS {                                                           \
                        global real *sum = ms + (c + i_) * COLS + v_ * VL;                   \
                        STORE_REALS(sum, old ? LOAD_REALS(sum) + acc[i_][v_] : acc[i_][v_]); \
                    }                                                                        \
                }                                                                            \
            }                                                                                \
        }                                                                                    \
    }

// One work-item multiplies one element e of one chunk of channels with one block of outputs, over all tiles of the
// part, and adds to the products of the parts before it.
SINGLE void filter_product(TENSOR_OF(const real, V), TENSOR_OF(const real, Y), TENSOR_OF(real, M), const int channels,
                           const int m_count, const Grid grid, const TileRows part) {
    const int tiles = part.tiles, tile_count = part.rows * TILES_W;
    const int chunk = get_global_id(0), block = get_global_id(1), e = get_global_id(2);
    const int chunks = get_global_size(0), m_blocks = get_global_size(1);
    const int channel = chunk * WC, count = min(channels - channel, WC);
    global const real *vs = OPEN(V) + e * ((long)chunks * tiles * WC + PAD) + (long)chunk * tiles * WC;
    global const real *ys = OPEN(Y) + e * ((long)m_blocks * tiles * COLS + PAD) + (long)block * tiles * COLS;
    global real *ms =
        OPEN(M) + e * ((long)m_blocks * channels * COLS + PAD) + ((long)block * channels + channel) * COLS;
    const int whole = rows_of_whole_tiles(count);
    int c = 0;
    for (; c < whole; c += MR) MULTIPLY_CHANNELS(MR)
    for (; c < count; c += LAST_MR) MULTIPLY_CHANNELS(LAST_MR)
}

// dw of VL outputs and CHANNELS channels from M.
#define CHANNELS 16

SINGLE void filter_result(TENSOR_OF(const real, M), TENSOR(dw), const int accumulate, const int channels,
                          const int m_count) {
    const int m = get_global_id(0) * VL, first = get_global_id(1) * CHANNELS, count = min(channels - first, CHANNELS);
    const int m_blocks = (m_count + COLS - 1) / COLS, lanes = min(m_count - m, VL);
    const long e_size = (long)m_blocks * channels * COLS + PAD;
    real taps[VL * (CHANNELS * FILTER_TAPS + VL)];  // [output][channel, tap]
    const int pitch = CHANNELS * FILTER_TAPS + VL;
    for (int c = 0; c < count; c++) {
        global const real *element = OPEN(M) + ((long)(m / COLS) * channels + first + c) * COLS + m % COLS;
        realv a[(FILTER_TAPS + VL - 1) / VL * VL], b[VL];
#define PRODUCT(i, j) LOAD_REALS(element + ((i) * SIDE_W + (j)) * e_size)
#define PUT(i, j, value) a[(i) * TAPS_W + (j)] = value;
        TRANSFORM_2D(TRANSFORM_FILTER, SIDE, TAPS, PRODUCT, PUT)
#undef PRODUCT
#undef PUT
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
        global stored *to = OPEN(dw) + ((long)(m + i) * channels + first) * FILTER_TAPS;
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
