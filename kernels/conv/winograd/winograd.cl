// Winograd's convolution on CPU devices, F(TILE x TILE, TAPS x TAPS) and, for kernels of one row or column, F(TILE,
// TAPS): forward and backward data, stride 1, any dilation; 3 x 3 taps with stride 2, as F(TILE x TILE, 2 x 2) of the
// stride's four phases, in transforms.cl.
//
// With 3 x 3 taps a tile of 4 x 4 outputs takes 36 multiplications a channel instead of 144, one of 2 x 2 outputs 16
// instead of 36; with 5 x 5 taps a tile of 2 x 2 outputs takes 36 instead of 100; with a line of 7 taps, 4 outputs
// take 10 instead of 28. Inside a block of tiles, lanes of vectors are channels: pixels are transposed from NCHW in
// registers on the way in and out, so that neither small planes nor borders waste lanes, and the transforms are
// plain arithmetic on vectors.
//
// e         one of the ELEMENTS of a transformed tile
// V         [e][phase of the source][chunk of WC channels][tile][WC]       transformed source
// U         [e][phase of the stride][block of COLS outputs][channel][COLS] transformed weights
// M         [e][phase of the target][tile][COLS]                           products of one block of outputs
//
// Phases of the stride are those of the source, or in backward data (PHASES_OF_TARGET) those of the target.
//
// PAST_CACHES  y is too large to be found in a cache again: whole vectors of pixels are stored past them
//
// Tiles are numbered along the rows of all images. Work-groups are one work-item. In `winograd` it takes all steps in a
// slice of the workspace of its own, which stays in the cache. Where there is too little work for that,
// winograd_source, winograd_product and winograd_result share what is between them and split each step as fine as it
// goes. Lavin and Gray, Fast algorithms for convolutional neural networks (2015); other points
// than theirs from SIDE 6 on.

#include "common/epilogue.cl"
#include "common/tickets.cl"
#include "conv/past_caches.cl"
#include "conv/winograd/transforms.cl"

// Writes count pixels of up to VL planes, `plane` apart, from pixels[pixel][lane]. The first is of channel `channel`
// and element `start` of the result.
void store_pixels(global stored *y, const long plane, const int lanes, local const real *pixels, const int count,
                  const int accumulate, const long channel, const long start TAKE_EPILOGUE) {
    int at = 0;
    for (; at + VL <= count; at += VL) {
        realv a[VL], b[VL];
#pragma unroll
        for (int i = 0; i < VL; i++) a[i] = LOAD_REALS(pixels + (at + i) * VL);
        TRANSPOSE(a, b, VL)
        if (lanes == VL && !accumulate) {
            const bool past = GOES_PAST(y + at, plane % VL == 0);
#pragma unroll
            for (int i = 0; i < VL; i++) {
                const long to = i * plane + at;
                PUT_VECTOR(past, y, to, EPILOGUE_VECTOR(a[i], channel + i, start + to))
            }
        } else {
            realv values[VL];
#pragma unroll
            for (int i = 0; i < VL; i++) values[i] = a[i];
#pragma unroll 1
            for (int i = 0; i < lanes; i++) {
                const long to = i * plane + at;
                const realv value = EPILOGUE_VECTOR(values[i], channel + i, start + to);
                VSTORE(y, to, accumulate ? value + VLOAD(y, to) : value);
            }
        }
        // the rest is covered by a last block that overlaps; with accumulate, the rest is added one by one,
        // otherwise some sums would be added twice
        if (at + VL < count && at + 2 * VL > count && !accumulate) at = count - 2 * VL;
    }
    for (; at < count; at++) {
        for (int i = 0; i < lanes; i++) {
            const long to = i * plane + at;
            STORE(
                y, to, EPILOGUE_ELEMENT(pixels[at * VL + i], channel + i, start + to) + (accumulate ? LOAD(y, to) : 0));
        }
    }
}

// Channels whose products are summed before they join the others. The transforms of long lines multiply what sums lose,
// and phases of a stride make four times as many channels: one long sum would double their error.
#if SIDE >= 10 && WC > 32
#define SUMMED 32
#else
#define SUMMED WC
#endif
#define SUMMED_APART (SIDE >= 8 || STRIDE > 1)

// U comes from beyond the L2 cache: a slice reads all of it, and so few tiles meet each row of it that the products
// would wait for it. So each step of a register tile asks for a line of what is multiplied next. Weights that a
// work-item transforms itself are in the cache already.
#define CHANNEL_LINES ((COLS + LINE - 1) / LINE)  // of U
#ifdef OWN_WEIGHTS
#define OWNS 1
#define ASK_WEIGHTS(p)
#else
#define OWNS 0
#define ASK_WEIGHTS(p) PREFETCH_FAR(p);
#endif

// The register tile: M[tile][COLS] (+)= sum over up to SUMMED channels of V[tile][channel] * U[channel][COLS].
#define MULTIPLY_TILES(rows, M, V, U, channels, add, ahead)                                             \
    {                                                                                                   \
        realv acc[rows][NV];                                                                            \
        SET_ROWS(rows, acc, add && !SUMMED_APART ? LOAD_REALS(M + i_ * COLS + v_ * VL) : (realv)(0))    \
        for (int c = 0; c < channels; c++) {                                                            \
            ASK_WEIGHTS(ahead + c * LINE)                                                               \
            STEP_ROWS(rows, acc, V[i_ * WC], vector_[v_] = LOAD_REALS(U + v_ * VL))                     \
            V++;                                                                                        \
            U += COLS;                                                                                  \
        }                                                                                               \
        if (SUMMED_APART && add) SET_ROWS(rows, acc, acc[i_][v_] + LOAD_REALS(M + i_ * COLS + v_ * VL)) \
        STORE_ROWS(rows, acc, M, COLS)                                                                  \
    }

void multiply_tile(global real *M, global const real *V, global const real *U, const int channels, const bool add,
                   global const real *ahead) {
    MULTIPLY_TILES(MR, M, V, U, channels, add, ahead)
}

void multiply_last_tile(global real *M, global const real *V, global const real *U, const int channels, const bool add,
                        global const real *ahead){MULTIPLY_TILES(LAST_MR, M, V, U, channels, add, ahead)}
#define AHEAD 4  // channels whose weights are asked for early

// U of VL outputs from m on and channels [first, last). With `flip`, w is (channels, m_count, TAPS, TAPS) and its
// kernels are turned by 180 degrees, as backward data needs them; else it is (m_count, channels, TAPS, TAPS). U points
// to the first of them, e_size elements lie between the transform's elements.
void transform_weights(global real *U, const long e_size, global const stored *w, const int channels, const int m_count,
                       const int flip, const int m, const int first, const int last) {
    const int lanes = min(m_count - m, VL);
    const long all = (long)m_count * channels * FILTER_TAPS;
    const long m_size = (flip ? 1 : (long)channels) * FILTER_TAPS;
    const long channel_size = (flip ? (long)m_count : 1) * FILTER_TAPS, phase_size = (e_size - PAD) / STRIDE_PHASES;
    for (int channel = first; channel < last; channel++) {
        realv taps[FILTER_TAPS];
        if (flip) {  // channels are so far apart that no processor asks for the next ones by itself
            global const stored *next = w + m * m_size + (channel + AHEAD) * channel_size;
#pragma unroll
            for (int i = 0; i <= FILTER_TAPS; i++) __builtin_prefetch(next + i * VL);
        }
#pragma unroll
        for (int tap = 0; tap < FILTER_TAPS; tap += VL) {
            const int skip = min(tap, max(FILTER_TAPS - VL, 0));  // the last vector overlaps the one in front of it
            realv a[VL], b[VL];
            const long from = m * m_size + channel * channel_size + skip;
            if (from + (lanes - 1) * m_size + VL <= all) {
#pragma unroll
                for (int i = 0; i < VL; i++) a[i] = VLOAD(w, from + min(i, lanes - 1) * m_size);
            } else {
                realv edge[VL];
#pragma unroll 1
                for (int i = 0; i < VL; i++) {
                    const long at = from + min(i, lanes - 1) * m_size;
                    edge[i] = load_row(w + at, all - at, FILTER_TAPS);
                }
#pragma unroll
                for (int i = 0; i < VL; i++) a[i] = edge[i];
            }
            TRANSPOSE(a, b, VL)
#pragma unroll
            for (int i = 0; i < VL; i++) {
                if (i + skip < FILTER_TAPS) taps[i + skip] = a[i];
            }
        }
        global real *to = U + (long)(channel - first) * COLS + m % COLS;
#pragma unroll
        for (int phase = 0; phase < STRIDE_PHASES; phase++) {
#define TAP_AT(at) (flip ? taps[FILTER_TAPS - 1 - (at)] : taps[at])
#define TAP(i, j) (HAS_TAP(phase, i, j) ? TAP_AT(TAP_OF_KERNEL(phase, i, j)) : 0)
#define PUT(i, j, value) \
    if (!IS_ZERO(phase, i, j)) STORE_REALS(to + phase * phase_size + ((i) * SIDE_W + (j)) * e_size, value);
            TRANSFORM_2D(TRANSFORM_WEIGHTS, TAPS, SIDE, TAP, PUT)
#undef TAP_AT
#undef TAP
#undef PUT
        }
    }
}

// U of w; one work-item takes VL outputs m and `range` channels.
SINGLE void winograd_weights(CONST_TENSOR(w), TENSOR_OF(real, U), const int channels, const int m_count, const int flip,
                             const int range) {
    const int m = get_global_id(0) * VL, first = get_global_id(1) * range, last = min(first + range, channels);
    const int m_blocks = (m_count + COLS - 1) / COLS;
    transform_weights(
        OPEN(U) + ((long)(m / COLS) * channels + first) * COLS, (long)STRIDE_PHASES * m_blocks * channels * COLS + PAD,
        OPEN(w), channels, m_count, flip, m, first, last);
}

// Products of tiles [0, tile_count) of one element, in one phase, and the channels [first, last), added to M with `add`
// or where first is not 0. Chunk by chunk, so that the weights of one stay in the first level's cache. weights points
// to channel `first`, `after` to what is multiplied afterwards.
void multiply_channels(global real *M, global const real *V, global const real *weights, const int tiles,
                       const int tile_count, const int first, const int last, const bool add,
                       global const real *after) {
    const int whole = rows_of_whole_tiles(tile_count);
    for (int chunk = first; chunk < last; chunk += WC) {
        for (int part = 0; part < WC; part += SUMMED) {
            if (part && chunk + part >= last) break;
            const int count = min(last - chunk - part, SUMMED);
            const bool adds = add || chunk + part > 0;
            global const real *source = V + (long)chunk * tiles + part;
            global const real *factors = weights + (chunk - first + part) * COLS;
            global const real *next = chunk + part + SUMMED < last ? factors + SUMMED * COLS : after;
            int tile = 0, asked = 0;
            for (; tile < whole; tile += MR) {
                multiply_tile(M + tile * COLS, source + tile * WC, factors, count, adds, next + asked * LINE);
                asked = min(asked + count, (CHANNEL_LINES - 1) * count);
            }
            for (; tile < tile_count; tile += LAST_MR) {
                multiply_last_tile(M + tile * COLS, source + tile * WC, factors, count, adds, next + asked * LINE);
                asked = min(asked + count, (CHANNEL_LINES - 1) * count);
            }
        }
    }
}

// The same for the elements [first_e, last_e) and all phases, of whose products those of the source's phases are
// summed. V, M and weights point to element 0.
void multiply(global real *M, const long m_size, global const real *V, const long v_size, global const real *weights,
              const long u_size, const int tiles, const int tile_count, const int first, const int last,
              const int first_e, const int last_e, global const real *after) {
    const long v_phase = SOURCE_PHASES > 1 ? (v_size - PAD) / STRIDE_PHASES : 0,
               m_phase = TARGET_PHASES > 1 ? (m_size - PAD) / STRIDE_PHASES : 0,
               u_phase = (u_size - PAD) / STRIDE_PHASES;
    global const real *factors = weights + first_e * u_size;
    for (int number = first_e * STRIDE_PHASES; number < last_e * STRIDE_PHASES;) {
        const int e = number / STRIDE_PHASES, phase = number % STRIDE_PHASES;
        number = products_after(number);
        global const real *next =
            number < last_e * STRIDE_PHASES
                ? weights + number / STRIDE_PHASES * u_size + number % STRIDE_PHASES * u_phase
                : after;
        multiply_channels(M + e * m_size + phase * m_phase, V + e * v_size + phase * v_phase, factors, tiles,
                          tile_count, first, last, SOURCE_PHASES > 1 && phase > 0, next);
        factors = next;
    }
}

// Whether lines of y, of Y_LINE elements, are asked for while tiles are transformed, so that stores do not wait for
// them: where rows are neighbours.
#if defined(DILATED) || defined(PAST_CACHES)
#define ASKS false
#else
#define ASKS true
#endif
#define Y_LINE (CACHE_LINE / (int)sizeof(stored))

// y of tile rows [first, first + count), up to most_rows at once, of VL outputs from m on. M points to the first tile
// and to m's lane. Pixels of the target that are in tiles and not in y are left out.
void transform_products(global stored *y, global const real *M, const long m_size, local real *pixels,
                        global const stored *bias, const int has_bias, const int accumulate, const int m_count,
                        const Grid grid, const Target target, const int m, const int first, const int count,
                        const int most_rows TAKE_EPILOGUE) {
    const int lanes = min(m_count - m, VL), tile_h = TILES_H, tile_w = TILES_W, oh = target.size_h, ow = target.size_w;
    const long plane = (long)oh * ow, m_phase = (m_size - PAD) / TARGET_PHASES;
    realv start = 0;
    if (has_bias) start = load_row(bias + m, m_count - m, lanes);
    for (int row = 0; row < count;) {
        const int image = (first + row) / tile_h;
        const PhaseRow begin = phase_row((first + row) % tile_h, grid);
        const int group = min(min(count - row, begin.left), most_rows), all_rows = group * OUTPUTS_H * TARGET_STRIDE;
        // as many rows at once as are neighbours
        const int rows = DILATE_H > 1 ? 1 : all_rows, above = begin.top * TARGET_STRIDE + target.begin_h;
        const int length = (min(above + rows, oh) - max(above, 0)) * ow,
                  lines = ASKS ? (length + Y_LINE - 1) / Y_LINE : 0;
        global const stored *ask = y + ((long)image * m_count + m) * plane + (long)max(above, 0) * ow;
        int asked = 0;
        for (int tile = 0; tile < group * tile_w; tile++) {
            for (; asked * group * tile_w < lines * (tile + 1); asked++) {
                for (int i = 0; i < lanes; i++) PREFETCH_TO_WRITE(ask + i * plane + asked * Y_LINE);
            }
            const int column = TILE_COLUMN(tile % tile_w) * TARGET_STRIDE + target.begin_w;
            local real *to = pixels + tile / tile_w * OUTPUTS_H * TARGET_STRIDE * ow * VL;
            for (int phase = 0; phase < TARGET_PHASES; phase++) {
                global const real *element = M + phase * m_phase + (row * tile_w + tile) * COLS;
#define IS_INSIDE(at) ((at) < ow && (TARGET_STRIDE == 1 || (at) >= 0))
#define AT(j) (column + COLUMN_OF_TARGET(phase, j) * DILATE_W)
#define PRODUCT(i, j) (IS_ZERO(phase, i, j) ? 0 : LOAD_REALS(element + ((i) * SIDE_W + (j)) * m_size))
#define PUT(i, j, value) \
    if (IS_INSIDE(AT(j))) STORE_REALS(to + (ROW_OF_TARGET(phase, i) * ow + AT(j)) * VL, value + start);
                TRANSFORM_PRODUCT_2D(PRODUCT, PUT)
#undef IS_INSIDE
#undef AT
#undef PRODUCT
#undef PUT
            }
        }
        for (int done = 0; done < all_rows; done += rows) {
            const int top = above + done * DILATE_H, h = max(top, 0);
            if (h >= oh) break;
            const long at = ((long)image * m_count + m) * plane + (long)h * ow;
            store_pixels(y + at, plane, lanes, pixels + (done + h - top) * ow * VL, (min(top + rows, oh) - h) * ow,
                         accumulate, m, at PASS_EPILOGUE);
        }
        row += group;
    }
}

// An item is `rows` tile rows, block_rows at a time, and `blocks` blocks of output channels; work-items take items,
// rows innermost, by tickets. `pixels` has room for group_rows rows. The fields are the table in
// core/operators/conv/arguments.py. With OWN_WEIGHTS, which is transform_weights, each transforms its blocks' weights
// itself, a chunk at a time that stays in the cache: for items that take all of their rows at once, and so use every
// block of weights once. Without it the kernel is a fifth shorter.
#if !OWNS
#define OWN_WEIGHTS(own, u_size, w, channels, m_count, flip, m, first, last)
#endif
typedef struct {
    TILE_SPLIT_FIELDS
} TileSplit;

// y (batch, m_count, target.size...) from x (batch, channels, grid.source...).
SINGLE void winograd(CONST_TENSOR(x), TENSOR_OF(const real, U), CONST_TENSOR(w), CONST_TENSOR(bias), TENSOR(y),
                     TENSOR_OF(real, slices), const int flip, const int has_bias, const int accumulate,
                     const int channels, const int m_count, const Grid grid, const Target target, const TileSplit split,
                     volatile global int *tickets, local real *pixels EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const int tile_w = TILES_W, block_rows = split.block_rows;
    const int tiles = (block_rows * tile_w + MR - 1) / MR * MR;
    const int chunks = (channels + WC - 1) / WC, m_blocks = (m_count + COLS - 1) / COLS;
    const long v_size = (long)SOURCE_PHASES * chunks * tiles * WC + PAD,
               m_size = (long)TARGET_PHASES * tiles * COLS + PAD, block_size = (long)channels * COLS;
    const long u_size = STRIDE_PHASES * (OWNS ? WC * COLS : m_blocks * block_size) + PAD;
    const long slice_size = ELEMENTS * (v_size + m_size + (OWNS ? u_size : 0));
    global real *V = OPEN(slices) + get_global_id(0) * slice_size;
    global real *M = V + ELEMENTS * v_size, *own = M + ELEMENTS * m_size;
    const int rows = grid.batch * TILES_H, row_items = (rows + split.rows - 1) / split.rows;
    const int items = row_items * ((m_blocks + split.blocks - 1) / split.blocks), workers = get_global_size(0);

    FOR_ITEMS(share) {
        const int first_row = share.item % row_items * split.rows, last_row = min(first_row + split.rows, rows);
        const int first_block = share.item / row_items * split.blocks,
                  last_block = min(first_block + split.blocks, m_blocks);
        for (int first = first_row; first < last_row; first += block_rows) {
            const int count = min(block_rows, last_row - first);
            transform_source(V, pixels, OPEN(x), channels, grid, 0, channels, tiles, first, count, split.group_rows);
            for (int block = first_block; block < last_block; block++) {
                const int last_m = min((block + 1) * COLS, m_count), range = OWNS ? WC : channels;
                for (int channel = 0; channel < channels; channel += range) {
                    const int last = min(channel + range, channels);
                    for (int m = block * COLS; OWNS && m < last_m; m += VL) {
                        OWN_WEIGHTS(own, u_size, OPEN(w), channels, m_count, flip, m, channel, last);
                    }
                    const int next_block = block + 1 < last_block ? block + 1 : first_block;
                    multiply(M, m_size, V, v_size, OWNS ? own : OPEN(U) + block * block_size, u_size, tiles,
                             count * tile_w, channel, last, 0, ELEMENTS, OPEN(U) + next_block * block_size);
                }
                for (int m = block * COLS; m < last_m; m += VL) {
                    transform_products(OPEN(y), M + m % COLS, m_size, pixels, OPEN(bias), has_bias, accumulate, m_count,
                                       grid, target, m, first, count, split.group_rows PASS_EPILOGUE);
                }
            }
        }
    }
}

// One work-item multiplies one block of outputs with `range` tiles, at one element e; M has [block] in front.
SINGLE void winograd_product(TENSOR_OF(const real, V), TENSOR_OF(const real, U), TENSOR_OF(real, M), const int channels,
                             const int tiles, const int range) {
    const int block = get_global_id(0), e = get_global_id(1), tile = get_global_id(2) * range,
              m_blocks = get_global_size(0);
    const long v_size = (long)SOURCE_PHASES * ((channels + WC - 1) / WC) * tiles * WC + PAD;
    const long m_size = (long)TARGET_PHASES * tiles * COLS + PAD, block_size = (long)channels * COLS;
    global const real *weights = OPEN(U) + block * block_size;
    multiply(OPEN(M) + block * ELEMENTS * m_size + tile * COLS, m_size, OPEN(V) + tile * WC, v_size, weights,
             STRIDE_PHASES * m_blocks * block_size + PAD, tiles, min(range, tiles - tile), 0, channels, e, e + 1,
             weights);
}

// One work-item computes VL outputs of block_rows of the tile rows.
SINGLE void winograd_result(TENSOR_OF(const real, M), CONST_TENSOR(bias), TENSOR(y), const int has_bias,
                            const int accumulate, const int m_count, const Grid grid, const Target target,
                            const TileRows part, local real *pixels EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const int row = get_global_id(0) * part.block_rows, m = get_global_id(1) * VL;
    const long m_size = (long)TARGET_PHASES * part.tiles * COLS + PAD;
    transform_products(OPEN(y), OPEN(M) + m / COLS * ELEMENTS * m_size + row * TILES_W * COLS + m % COLS, m_size,
                       pixels, OPEN(bias), has_bias, accumulate, m_count, grid, target, m, row,
                       min(part.block_rows, part.rows - row), part.block_rows PASS_EPILOGUE);
}
