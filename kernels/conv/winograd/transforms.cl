// The parts that Winograd's convolutions on CPU devices share: their layouts, the transforms, and pixels in and out.
//
// The transforms of one axis are in axes.cl; all else follows from TILE and TAPS. The register tile's rows are tiles,
// or channels in the backward filter; its vectors are output channels.
//
// DILATED  whether taps are grid.step apart along the transformed axes, instead of neighbours

#define PAD 48  // elements between a transform's elements, so that they do not share the sets of a cache
#ifndef WC
#define WC 64  // channels of a row of V, a multiple of VL; a constant, so that a register tile's rows need one address
#endif

#define LINE (CACHE_LINE / (int)sizeof(real))  // elements of a line of the caches

#include "common/prefetch.cl"
#include "common/register_tile.cl"
#include "conv/grid.cl"

// A dilated convolution is one without dilation for each phase: the rows and columns that leave one remainder when
// divided by the dilation. A tile belongs to one phase, its outputs lie in BLOCK_H x BLOCK_W others.
#ifdef DILATED
#define DILATE_H grid.step_h
#define DILATE_W grid.step_w
#else
#define DILATE_H 1
#define DILATE_W 1
#endif
#define BLOCK_H (OUTPUTS_H * DILATE_H)
#define BLOCK_W (OUTPUTS_W * DILATE_W)

// With a stride of 2 an even row or column of a kernel's pixels meets 2 taps, an odd one 1 tap: F(TILE x TILE, 2 x 2)
// of the STRIDE_PHASES phases of pixels as if they were channels. Phase STRIDE * h + w has rows h and columns w. One
// tap is two of which the second is zero, and so is the weight at infinity, the last element: no product is made there.
// In backward data (PHASES_OF_TARGET) phases are those of the target's pixels. A target's pixel of one tap belongs to a
// tile's output in front of it, so that its missing tap is the second one, too.
#define STRIDE_PHASES (STRIDE * STRIDE)
#ifdef PHASES_OF_TARGET
#define SOURCE_STRIDE 1
#define TARGET_STRIDE STRIDE
#else
#define SOURCE_STRIDE STRIDE
#define TARGET_STRIDE 1
#endif
#define SOURCE_PHASES (SOURCE_STRIDE * SOURCE_STRIDE)
#define TARGET_PHASES (TARGET_STRIDE * TARGET_STRIDE)
#define IS_ZERO(phase, i, j) \
    (STRIDE > 1 && (((phase) / STRIDE > 0 && (i) == SIDE_H - 1) || ((phase) % STRIDE > 0 && (j) == SIDE_W - 1)))
// which of the kernel's taps tap (i, j) of a phase is, if the phase has it
#define ROW_OF_TAP(phase, i) ((i) * STRIDE + (phase) / STRIDE)
#define COLUMN_OF_TAP(phase, j) ((j) * STRIDE + (phase) % STRIDE)
#define HAS_TAP(phase, i, j) (ROW_OF_TAP(phase, i) < KERNEL_H && COLUMN_OF_TAP(phase, j) < KERNEL_W)
#define TAP_OF_KERNEL(phase, i, j) (ROW_OF_TAP(phase, i) * KERNEL_W + COLUMN_OF_TAP(phase, j))
// where element i of a tile of a phase is in a tile's pixels; what one tap does not meet is any pixel
#define ROW_OF_PHASE(phase, i) ((i) * SOURCE_STRIDE + ((i) < OUTPUTS_H ? (phase) / STRIDE : 0))
#define COLUMN_OF_PHASE(phase, j) ((j) * SOURCE_STRIDE + ((j) < OUTPUTS_W ? (phase) % STRIDE : 0))
// where output i of a tile of a phase is in a tile's pixels of the target
#define ROW_OF_TARGET(phase, i) ((i) * TARGET_STRIDE + TARGET_STRIDE - 1 - (phase) / STRIDE)
#define COLUMN_OF_TARGET(phase, j) ((j) * TARGET_STRIDE + TARGET_STRIDE - 1 - (phase) % STRIDE)
// rows and columns of the source that tiles meet besides SOURCE_STRIDE for each of their outputs
#define BEYOND_H (SOURCE_STRIDE * (TAPS_H - 2) + 1)
#define BEYOND_W (SOURCE_STRIDE * (TAPS_W - 2) + 1)

// Tiles are numbered along the tile rows of all images: TILES_H of them in an image, of TILES_W tiles each. A tile row
// has the tiles of all phases of columns in the order of their first columns. Tile rows go phase by phase.
#define TILES_ALONG(size, block, dilate) ((size) / (block) * (dilate) + min((size) % (block), dilate))
#define TILES_H TILES_ALONG(grid.size_h, BLOCK_H, DILATE_H)
#define TILES_W TILES_ALONG(grid.size_w, BLOCK_W, DILATE_W)
#define TILE_COLUMN(tile) ((tile) / DILATE_W * BLOCK_W + (tile) % DILATE_W)
#define COLUMNS ((grid.size_w + BLOCK_W - 1) / BLOCK_W * BLOCK_W)  // at least those that a tile row's outputs have

// Tile rows [first_row, first_row + rows) of all images, whose transforms lie in a part of the workspace of `tiles`
// tiles. A work-item takes block_rows of them. The fields are the table in core/operators/conv/arguments.py.
typedef struct {
    TILE_ROWS_FIELDS
} TileRows;

#if NV * MR > 16  // sums that stay in registers: there are 32 of them
#define HALVES
#endif
#define TRANSFORMED realv
#include "conv/winograd/axes.cl"

// Of a tile row of an image: its first row of outputs, and the number of tile rows from there to its phase's last.
typedef struct {
    int top, left;
} PhaseRow;

PhaseRow phase_row(int h, const Grid grid) {
    PhaseRow found;
#ifdef DILATED
    const int shorter = grid.size_h / BLOCK_H, longer_phases = min(grid.size_h % BLOCK_H, DILATE_H);
    const bool is_longer = h < longer_phases * (shorter + 1);
    if (!is_longer) h -= longer_phases * (shorter + 1);
    const int of_phase = shorter + is_longer, phase = h / of_phase + (is_longer ? 0 : longer_phases);
    found.top = phase + h % of_phase * BLOCK_H;
    found.left = of_phase - h % of_phase;
#else
    found.top = h * OUTPUTS_H;
    found.left = TILES_H - h;
#endif
    return found;
}

// The number of the next products, which are numbered by phases of each element: those of zeros are left out.
int products_after(int number) {
    do number++;
    while (number < ELEMENTS * STRIDE_PHASES &&
           IS_ZERO(number % STRIDE_PHASES, number / STRIDE_PHASES / SIDE_W, number / STRIDE_PHASES % SIDE_W));
    return number;
}

// Loads VL elements of a row, the last ones of a tensor one by one.
realv load_row(global const stored *row, const long left, const int wanted) {
    if (left >= VL) return VLOAD(row, 0);
    real values[VL];
    for (int i = 0; i < VL; i++) values[i] = i < wanted ? LOAD(row, i) : 0;
    return LOAD_REALS(values);
}

// pixels[row][column][lane] = x[channel + lane][top + row * step][left_column + column], 0 outside of the plane. x
// starts at the first of `lanes` channels' planes; `left` elements may be read. VL more vectors are written at the end.
void load_pixels(local real *pixels, global const stored *x, const long left, const int lanes, const int ch,
                 const int cw, const int top, const int step, const int left_column, const int rows,
                 const int columns) {
    const long plane = (long)ch * cw;
    const int begin = clamp(-left_column, 0, columns), end = clamp(cw - left_column, begin, columns);
    for (int row = 0; row < rows; row++) {
        local real *to = pixels + row * columns * VL;
        const int h = top + row * step;
        const int stop = h >= 0 && h < ch ? end : 0;
        for (int column = 0; column < (stop ? begin : columns); column++) STORE_REALS(to + column * VL, (realv)(0));
        if (!stop) continue;
        for (int column = begin; column < stop; column += VL) {
            realv a[VL], b[VL];
            const long at = (long)h * cw + left_column + column;
            if ((lanes - 1) * plane + at + VL <= left) {
#pragma unroll
                for (int i = 0; i < VL; i++) {
                    __builtin_prefetch(x + (VL + i) * plane + at);  // for the next channels
                    a[i] = VLOAD(x, min(i, lanes - 1) * plane + at);
                }
            } else {
                realv edge[VL];
#pragma unroll 1
                for (int i = 0; i < VL; i++) {
                    const long from = min(i, lanes - 1) * plane + at;
                    edge[i] = load_row(x + from, left - from, stop - column);
                }
#pragma unroll
                for (int i = 0; i < VL; i++) a[i] = edge[i];
            }
            TRANSPOSE(a, b, VL)
#pragma unroll
            for (int i = 0; i < VL; i++) STORE_REALS(to + (column + i) * VL, a[i]);
        }
        for (int column = stop; column < columns; column++) STORE_REALS(to + column * VL, (realv)(0));
    }
}

// Transforms the source tiles of tile rows [first, first + count), numbered over all images, into V, for the channels
// [first_channel, last_channel), up to most_rows rows at once. `tiles` is V's number of tiles.
void transform_source(global real *V, local real *pixels, global const stored *x, const int channels, const Grid grid,
                      const int first_channel, const int last_channel, const int tiles, const int first,
                      const int count, const int most_rows) {
    const int tile_h = TILES_H, tile_w = TILES_W, columns = COLUMNS * SOURCE_STRIDE + BEYOND_W * DILATE_W;
    const long plane = (long)grid.source_h * grid.source_w, all = (long)grid.batch * channels * plane;
    const long phase_size = (long)((channels + WC - 1) / WC) * tiles * WC, e_size = SOURCE_PHASES * phase_size + PAD;
    for (int channel = first_channel; channel < last_channel; channel += VL) {
        global real *to = V + (long)(channel / WC) * tiles * WC + channel % WC;
        for (int row = 0; row < count;) {
            const int image = (first + row) / tile_h;
            const PhaseRow begin = phase_row((first + row) % tile_h, grid);
            const int group = min(min(count - row, begin.left), most_rows);
            const long from = ((long)image * channels + channel) * plane;
            load_pixels(pixels, x + from, all - from, min(channels - channel, VL), grid.source_h, grid.source_w,
                        begin.top * SOURCE_STRIDE + grid.begin_h, DILATE_H, grid.begin_w,
                        group * OUTPUTS_H * SOURCE_STRIDE + BEYOND_H, columns);
            for (int tile = 0; tile < group * tile_w; tile++) {
                local const real *corner =
                    pixels + (tile / tile_w * OUTPUTS_H * columns + TILE_COLUMN(tile % tile_w)) * SOURCE_STRIDE * VL;
                for (int phase = 0; phase < SOURCE_PHASES; phase++) {
                    global real *element = to + phase * phase_size + (row * tile_w + tile) * WC;
#define PIXEL(i, j) LOAD_REALS(corner + (ROW_OF_PHASE(phase, i) * columns + COLUMN_OF_PHASE(phase, j) * DILATE_W) * VL)
#define PUT(i, j, value) \
    if (!IS_ZERO(phase, i, j)) STORE_REALS(element + ((i) * SIDE_W + (j)) * e_size, value);
                    TRANSFORM_SOURCE_2D(PIXEL, PUT)
#undef PIXEL
#undef PUT
                }
            }
            row += group;
        }
    }
}

// V of `count` tile rows of a part from `row` on, up to block_rows, in VL channels.
void transform_source_rows(global real *V, local real *pixels, global const stored *x, const int channels,
                           const Grid grid, const TileRows part, const int channel, const int row, const int count) {
    transform_source(V + (long)row * TILES_W * WC, pixels, x, channels, grid, channel, min(channel + VL, channels),
                     part.tiles, part.first_row + row, count, part.block_rows);
}

// V of a part's tile rows; one work-item transforms block_rows of them in VL channels.
SINGLE void winograd_source(CONST_TENSOR(x), TENSOR_OF(real, V), const int channels, const Grid grid,
                            const TileRows part, local real *pixels) {
    const int row = get_global_id(0) * part.block_rows;
    transform_source_rows(OPEN(V), pixels, OPEN(x), channels, grid, part, get_global_id(1) * VL, row,
                          min(part.block_rows, part.rows - row));
}
