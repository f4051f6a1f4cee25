// Convolution with kernels of one pixel, and its backward data, on CPU devices: a product of matrices in place.
//
//     y[image][group][m][pixel]  =  bias[m] + sum over channels of weights[m][channel] *
//         x[image][group][channel][pixel * stride + begin, on each axis]
//
// weights   operands, [group][m][channel] or [group][channel][m], the convolution's in place; or packed, see weights.cl
// panel     local, [tile of COLS pixels][channel][COLS], one block of pixels, a part of the channels at a time
// x         (batch, groups * channels, source)
// y         (batch, groups * m_count, pixels); a block's pixels are numbered over all images
// tickets   share items, one for each block of pixels (innermost), block of rows m and group
//
// PAST_CACHES    y is too large to be found in a cache again: whole tiles are stored past them
// WEIGHTS_APART  weights of neighbouring steps are a row of the matrix apart
// STRIDE         elements of x from a pixel to the next one of its row, where not every element is met in its order:
//                tiles are filled piece by piece of rows of pixels, before their products
// SPREAD         y's pixels lie a stride apart in a larger tensor, see spread.cl
//
// Rows of x are as far apart as an image has pixels, so that no hardware prefetch sees what comes next. While a panel
// is multiplied, what the next one is filled with is asked for, evenly spread over the products: else memory is waited
// for between the products, a quarter of the time. So a work-item, which is a work-group, takes its next ticket before
// the last products, except in the last round. Tiles are MR x NV vectors.

#include "conv/gemm_cpu/weights.cl"
#include "conv/gemm_cpu/panel.cl"
#include "conv/gemm_cpu/block.cl"
#ifdef SPREAD
#include "conv/gemm_cpu/spread.cl"
#define SPREAD_PARAMETERS , const Target target
#define PASS_SPREAD_PARAMETERS , target
#else
#define SPREAD_PARAMETERS
#define PASS_SPREAD_PARAMETERS
#endif

#define MOST_TILES 8  // of a block
// Channels, how far ahead pieces of planes are asked for: they are too short for the hardware's prefetch.
#define AHEAD 4
// Asks for the weights of a later step. Where rows are a power of two apart, all steps share few sets of the caches,
// which are to hold what is asked for.
#if WEIGHTS_APART
#define ASK_WEIGHTS __builtin_prefetch(a[0] + at + 8 * strides.step, 0, 3);
#else
#define ASK_WEIGHTS
#endif

#ifdef STRIDE
// The vectors that a row of a tile is filled with, in the order of their lanes, and where they begin in x. Lanes after
// those of its piece of a row, which the next vectors fill, are filled as well.
typedef struct {
    int count, lane[COLS];
    long from[COLS];
} Pieces;

// Finds the pieces of `columns` pixels from p on, in images of `image_size` elements.
void find_pieces(Pieces *pieces, const long p, const int columns, const long image_size, const Grid grid) {
    long row = p / grid.size_w, plane = row / grid.size_h, image = plane / grid.size_d;
    int w = (int)(p - row * grid.size_w), h = (int)(row - plane * grid.size_h), d = (int)(plane - image * grid.size_d);
    int found = 0;
    for (int at = 0; at < columns;) {
        const int length = min(grid.size_w - w, columns - at);
        const long source_plane = (d * grid.stride_d + grid.begin_d) * (long)grid.source_h;
        const long source_row = source_plane + h * grid.stride_h + grid.begin_h;
        const long from = image * image_size + source_row * grid.source_w + w * STRIDE + grid.begin_w;
        for (int l = 0; l < length; l += VL, found++) {
            pieces->lane[found] = at + l;
            pieces->from[found] = from + l * STRIDE;
        }
        at += length;
        w = 0;
        h = h + 1 < grid.size_h ? h + 1 : 0;
        d = h ? d : d + 1 < grid.size_d ? d + 1 : 0;
        image += h + d == 0;
    }
    pieces->count = found;
}

// Fills `rows` rows of a tile with `columns` pixels, the first `readable` of them by vectors.
void fill_pieces(local cell *tile, global const stored *row, const Pieces *pieces, const long plane, const int columns,
                 const int readable, const int rows) {
    for (int k = 0; k < rows; k++) {
        for (int lane = columns; lane < COLS; lane++) tile[lane] = 0;
        if (k < readable) {
            for (int i = 0; i < pieces->count; i++)
                STORE_OPERANDS(tile + pieces->lane[i], CELLS_OF(row + pieces->from[i], plane, STRIDE));
        } else {
            for (int i = 0; i < pieces->count; i++) {
                const int lane = pieces->lane[i], end = i + 1 < pieces->count ? pieces->lane[i + 1] : columns;
                for (int l = lane; l < end; l++) tile[l] = CELL(row, pieces->from[i] + (l - lane) * STRIDE, plane);
            }
        }
        tile += COLS;
        row += PLANES * plane;
    }
}
#else
// Fills rows [from, to) of a tile, channels or pairs of them, where it may not be read whole, `count` pixels of them.
void fill_tile(local cell *tile, global const stored *xs, const long pixels, const long image_size, const long first,
               const int count, const int from, const int to) {
    for (int lane = 0; lane < count;) {
        const long image = (first + lane) / pixels, rest = first + lane - image * pixels;
        const int length = (int)min((long)count - lane, pixels - rest);
        global const stored *row = xs + image * image_size + from * (PLANES * pixels) + rest;
        for (int k = 0; k < to - from; k++) {
            local cell *piece = tile + k * COLS + lane;
            COPY_PIECE(length, STORE_OPERANDS(piece + i, CELLS_OF(row + i, pixels, 1)), piece[i] = CELL(row, i, pixels))
            row += PLANES * pixels;
        }
        lane += length;
    }
    for (int k = 0; k < to - from; k++) {
        for (int lane = count; lane < COLS; lane++) tile[k * COLS + lane] = 0;
    }
}
#endif

// Adds the products of steps [k, stop) to the first `count` vectors of acc; `fetch` sets
// vector_[v_], vector v_ of step k.
#define MULTIPLY(count, fetch)                     \
    for (; k < stop; k++) {                        \
        ASK_WEIGHTS                                \
        TILE_STEP_OF(count, acc, a[i_][at], fetch) \
        at += strides.step;                        \
        b += COLS;                                 \
    }
// Reads a step's vectors from the source, and fills the panel with them; or reads them from the panel.
#define FILL(count)                                                 \
    MULTIPLY(count, ASK(row + (k + AHEAD) * row_size + v_ * VL, 3); \
             vector_[v_] = CELLS_OF(row + k * row_size + v_ * VL, plane, 1); STORE_OPERANDS(b + v_ * VL, vector_[v_]))
#define REUSE(count) MULTIPLY(count, vector_[v_] = LOAD_OPERANDS(b + v_ * VL))
// Asks for the planes of a row.
#if PLANES == 2
#define ASK(p, level)                  \
    __builtin_prefetch((p), 0, level); \
    __builtin_prefetch((p) + plane, 0, level)
#else
#define ASK(p, level) __builtin_prefetch((p), 0, level)
#endif

kernel void conv_plain(CONST_TENSOR(x), TENSOR_OF(const operand, weights), const WeightStrides strides,
                       CONST_TENSOR(bias), TENSOR(y), const int has_bias, const int accumulate, const int channels,
                       const int m_count, const Grid grid, const int groups, const int block_tiles,
                       const int block_rows, const int part, volatile global int *tickets, local cell *panel,
                       local real *tile_out, local real *kept SPREAD_PARAMETERS EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const int m_tiles = (m_count + MR - 1) / MR;
    const int pitch = part * COLS + VL;  // of a tile
    const long pixels = (long)grid.size_d * grid.size_h * grid.size_w;
    const long plane = (long)grid.source_d * grid.source_h * grid.source_w;
    const long row_size = PLANES * plane;  // of a row of the panel, in elements of x
    const long all = grid.batch * pixels, image_size = groups * channels * row_size;
    const Blocks blocks = blocks_of(all, block_tiles, m_tiles, block_rows);
    const int items = blocks.across * blocks.down * groups, workers = get_global_size(0);

    Share share = take_ticket(TICKETS);
    while (share.item < items) {
        const Block block = block_of(&blocks, share.item);
        const int group = block.group, count = block.count, m_first = block.m_first, m_last = block.m_last;
        const long first = block.first;
        global const stored *xs = OPEN(x) + group * channels * row_size;
        // the last items are taken when they are computed: else one work-item has two while another has none
        const bool early = share.item < share.last || share.item + workers < items;
        const long left = grid.batch * image_size - group * channels * row_size;  // elements of x from xs on
        // where each tile begins in x and y, in elements, and the next block's in x; -1: there is none
        long tile_source[MOST_TILES], tile_target[MOST_TILES], ask_source[MOST_TILES];
#ifdef STRIDE
        Pieces pieces[MOST_TILES], next_pieces[MOST_TILES];
#endif
        // channels from which a whole row of the tile may be read: none if it lies in two images. Where it ends early,
        // it reads a piece of the next channel as well, whose products are not stored
        int readable[MOST_TILES];
        bool is_whole[MOST_TILES];
        for (int tile = 0; tile * COLS < count; tile++) {
            const long p = first + tile * COLS, image = p / pixels, at = p - image * pixels;
            const int columns = min(COLS, count - tile * COLS);
#ifdef STRIDE
            find_pieces(pieces + tile, p, columns, image_size, grid);
            tile_source[tile] = 0;
            const long end = pieces[tile].from[pieces[tile].count - 1] + VL * STRIDE + (PLANES - 1) * plane;
            readable[tile] = (int)clamp((left - end + row_size) / row_size, 0L, (long)channels);
#else
            tile_source[tile] = image * image_size + at;
            const int width = columns <= VL ? VL : COLS;
            const long rows = (left - tile_source[tile] - width + pixels) / pixels / PLANES;
            readable[tile] = at + columns <= pixels ? (int)clamp(rows, 0L, (long)channels) : 0;
#endif
            is_whole[tile] = columns == COLS && at + COLS <= pixels;
            tile_target[tile] = (image * groups + group) * m_count * pixels + at;
        }
        for (int from = 0; from < max(channels, 1); from += part) {
            const int to = min(from + part, channels), k_count = to - from;
#if KEEP_SUMS
            const bool add = accumulate;
#else
            const bool add = accumulate || from;
#endif
            const bool once = (KEEP_SUMS || part >= channels) && !accumulate;  // no part is added to another's in y
            // what is filled next: the block's next part or the next block's first
            const bool last_part = to >= channels;
            const int next_from = last_part ? 0 : to, next_count = min(part, channels - next_from);
            if (last_part && early) share = next_item(share, TICKETS);
            const Block next = block_of(&blocks, share.item);
            const long next_last = (!last_part || early) && share.item < items ? all : 0;
            for (int tile = 0; tile * COLS < count; tile++) {
                const long ask = next.first + tile * COLS;
#ifdef STRIDE
                ask_source[tile] = ask < next_last ? next.group * channels * row_size : -1;
                if (ask < next_last)
                    find_pieces(next_pieces + tile, ask, (int)min((long)COLS, all - ask), image_size, grid);
#else
                const long image = ask / pixels, row = (image * groups + next.group) * channels;
                ask_source[tile] = ask < next_last ? row * row_size + ask - image * pixels : -1;
#endif
            }
            for (int m_tile = m_first; m_tile < m_last; m_tile++) {
                const int m = m_tile * MR, m_rows = min(MR, m_count - m);
                TILE_WEIGHTS(a, OPEN(weights), strides, group, m_tile, m_rows, from)
                const long asked = (long)next_count * (m_tile - m_first) / (m_last - m_first);
                const int asks = (int)((long)next_count * (m_tile - m_first + 1) / (m_last - m_first) - asked);
                for (int tile = 0; tile * COLS < count; tile++) {
                    global const stored *asking = OPEN(x) + ask_source[tile] + (next_from + asked) * row_size;
                    const bool ask = ask_source[tile] >= 0 && asks > 0;
                    const int every = ask ? max(k_count / asks, 1) : k_count;
                    realv acc[MR][NV];
                    if (last_part) {  // what is joined with the results, which would wait for memory one by one
                        TILE_ROWS {
                            TILE_VECTORS { ASK_EXTRAS(tile_target[tile] + (m + i_) * pixels + v_ * VL) }
                        }
                    }
                    START_TILE(acc, has_bias && from == 0, OPEN(bias) + group * m_count + m, m_rows)
#if KEEP_SUMS
                    local real *sums = kept + ((m_tile - m_first) * block_tiles + tile) * MR * COLS;
                    if (from > 0) {
                        TILE_LOAD(acc, sums, COLS)
                    }
#endif
                    // the first products also fill the panel: they hide the time of the copy
                    const long p = first + tile * COLS;
                    const int columns = min(COLS, count - tile * COLS);
                    const int whole = m_tile == m_first ? clamp(readable[tile] - from, 0, k_count) : 0;
                    global const stored *row = xs + tile_source[tile] + from * row_size;
                    local cell *b = panel + tile * pitch;
                    long at = 0;
                    const bool narrow = NV > 1 && columns <= VL;
#ifdef STRIDE
                    if (m_tile == m_first) fill_pieces(b, row, pieces + tile, plane, columns, whole, k_count);
                    const int filled = 0;
#else
                    const int filled = whole;
                    if (m_tile == m_first && filled < k_count) {
                        fill_tile(b + filled * COLS, xs, pixels, image_size, p, columns, from + filled, to);
                    }
#endif
                    // a loop of its own: products of both kinds in one took twice the time
                    for (int k = 0; k < filled;) {
                        const int stop = filled;
                        if (narrow) {
                            FILL(1)
                        } else {
                            FILL(NV)
                        }
                    }
                    for (int k = filled; k < k_count;) {
                        const int stop = min(k + every, k_count);
                        if (ask) {
#ifdef STRIDE
                            for (int i = 0; i < next_pieces[tile].count; i++) {
#pragma unroll
                                for (int v = 0; v < STRIDE; v++) {
                                    ASK(asking + next_pieces[tile].from[i] + v * VL, 2);
                                }
                            }
#else
#pragma unroll
                            for (int v = 0; v < NV; v++) {
                                ASK(asking + v * VL, 2);
                            }
#endif
                            asking += row_size;
                        }
                        if (narrow) {
                            REUSE(1)
                        } else {
                            REUSE(NV)
                        }
                    }
#if KEEP_SUMS
                    if (!last_part) {
                        TILE_STORE(acc, sums, COLS)
                        continue;
                    }
#endif
#ifdef SPREAD
                    TILE_STORE(acc, tile_out + tile * COLS, block_tiles * COLS)
#else
                    if (m_rows == MR && is_whole[tile]) {
                        global stored *ys = OPEN(y) + tile_target[tile] + m * pixels;
                        STORE_TILE(acc, ys, pixels, group * m_count + m, add, once)
                        continue;
                    }
                    TILE_STORE(acc, tile_out, COLS)
                    store_columns(
                        OPEN(y), tile_out, p, columns, pixels, group, groups, m_count, m, m_rows, add PASS_EPILOGUE);
#endif
                }
#ifdef SPREAD
                const long target_plane = (long)target.size_d * target.size_h * target.size_w;
                for (int at = 0, length; last_part && at < count; at += length) {
                    const long image = (first + at) / pixels, p = first + at - image * pixels;
                    length = (int)min((long)count - at, pixels - p);
                    global stored *ys = OPEN(y) + ((image * groups + group) * m_count + m) * target_plane;
                    for (int i = 0; i < m_rows; i++)
                        spread_run(ys + i * target_plane, tile_out + i * block_tiles * COLS + at, p, length, accumulate,
                                   target);
                }
#endif
            }
        }
        if (!early) share = next_item(share, TICKETS);
    }
}
