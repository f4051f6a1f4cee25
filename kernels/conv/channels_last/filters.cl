// Gradient of the weights in channels last on CPU devices: a product of matrices whose sums run over pixels.
//
//     dw[output][tap][channel]  =  sum over pixels of dy[pixel][output] * x[pixel + tap][channel]
//
// x        real, (batch, source_d, source_h, source_w, groups * channels), as in pixels.cl
// dy       (batch, pixels..., groups * outputs)
// partial  real, [part][group][tile of MR outputs][run][tile of COLS columns][MR][COLS]
// dw       (groups * outputs, runs, run): a run is what is contiguous in x of the taps and channels, `run` elements
//
// Vectors run along a run and elements of dy are broadcast: both are read where they lie. The last vectors of a run
// begin where they end with it, so that nothing beyond x is read. A work-group is one work-item: a part of the pixels,
// a range of tiles of outputs, one group. It takes `chunk` pixels at a time, which stay in a core's own cache.

#include "common/register_tile.cl"
#include "conv/grid.cl"

// The column at which vector v of a tile begins.
// clang-format off
#define COLUMN(v) max(min(tile * COLS + (v) * VL, run - VL), 0)
// clang-format on

SINGLE void multiply_filters(TENSOR_OF(const real, x), CONST_TENSOR(dy), TENSOR_OF(real, partial), const int channels,
                             const int outputs, const long part_pixels, const int item_tiles, const int chunk,
                             const int run, const Grid grid, local long *places) {
    const int part = get_global_id(0), group = get_global_id(2), groups = get_global_size(2), all = channels * groups;
    const int taps_w = run > channels ? 1 : grid.taps_w, runs = grid.taps_d * grid.taps_h * taps_w;
    const int out_tiles = (outputs + MR - 1) / MR, tiles = (run + COLS - 1) / COLS, all_outputs = groups * outputs;
    const long pixels = (long)grid.batch * grid.size_d * grid.size_h * grid.size_w;
    const long first = part * part_pixels, last = min(first + part_pixels, pixels);
    const int begin = get_global_id(1) * item_tiles, end = min(begin + item_tiles, out_tiles);
    for (long from = first; from < last; from += chunk) {
        const int count = (int)min((long)chunk, last - from);
        for (int i = 0; i < count; i++) {
            const long pixel = from + i, row = pixel / grid.size_w, slice = row / grid.size_h,
                       image = slice / grid.size_d;
            const long d = (slice - image * grid.size_d) * grid.stride_d,
                       h = (row - slice * grid.size_h) * grid.stride_h;
            const long w = (pixel - row * grid.size_w) * grid.stride_w;
            places[i] =
                (((image * grid.source_d + d) * grid.source_h + h) * grid.source_w + w) * all + group * channels;
        }
        for (int r = 0; r < runs; r++) {
            const int tap_row = r / taps_w, tap_slice = tap_row / grid.taps_h;
            const long d = tap_slice * grid.step_d, h = (tap_row - tap_slice * grid.taps_h) * grid.step_h;
            const long shift = ((d * grid.source_h + h) * grid.source_w + (r - tap_row * taps_w) * grid.step_w) * all;
            for (int tile = 0; tile < tiles; tile++) {
                const bool full = (tile + 1) * COLS <= run;
                int columns[NV];
                TILE_VECTORS columns[v_] = COLUMN(v_);
                for (int out_tile = begin; out_tile < end; out_tile++) {
                    global real *sums =
                        OPEN(partial) + ((((long)part * groups + group) * out_tiles + out_tile) * runs * tiles +
                                         (long)r * tiles + tile) *
                                            MR * COLS;
                    realv acc[MR][NV];
                    if (from > first) {
                        TILE_LOAD(acc, sums, COLS)
                    } else {
                        TILE_SET(acc, (realv)(0))
                    }
                    global const stored *dys = OPEN(dy) + from * all_outputs + group * outputs + out_tile * MR;
                    const int there = outputs - out_tile * MR;
                    if (full && there >= MR) {
                        global const real *xs = OPEN(x) + shift + tile * COLS;
                        for (int i = 0; i < count; i++) {
                            global const real *at = xs + places[i];
                            TILE_STEP(acc, LOAD(dys, i_), vector_[v_] = LOAD_REALS(at + v_ * VL))
                            dys += all_outputs;
                        }
                    } else {
                        global const real *xs = OPEN(x) + shift;
                        for (int i = 0; i < count; i++) {
                            global const real *at = xs + places[i];
                            TILE_STEP(acc, LOAD(dys, min(i_, there - 1)), vector_[v_] = LOAD_REALS(at + columns[v_]))
                            dys += all_outputs;
                        }
                    }
                    TILE_STORE(acc, sums, COLS)
                }
            }
        }
    }
}

// Adds the parts in their order. A work-item takes one row of a tile of outputs: all runs of one output.
SINGLE void add_filters(TENSOR_OF(const real, partial), TENSOR(dw), const int accumulate, const int outputs,
                        const int runs, const int run, const int parts) {
    const int output = get_global_id(0), group = get_global_id(1), groups = get_global_size(1);
    const int out_tiles = (outputs + MR - 1) / MR, tiles = (run + COLS - 1) / COLS;
    const long part_size = (long)groups * out_tiles * runs * tiles * MR * COLS;
    for (int r = 0; r < runs; r++) {
        global stored *to = OPEN(dw) + (((long)group * outputs + output) * runs + r) * run;
        for (int tile = 0; tile < tiles; tile++) {
            const long at = (((long)group * out_tiles + output / MR) * runs + r) * tiles + tile;
            global const real *from = OPEN(partial) + (at * MR + output % MR) * COLS;
            for (int v = 0; v < NV && tile * COLS + v * VL < run; v++) {
                realv sum = LOAD_REALS(from + v * VL);
                for (int part = 1; part < parts; part++) sum += LOAD_REALS(from + part * part_size + v * VL);
                const int column = COLUMN(v), again = tile * COLS + v * VL - column;
                if (!again && column + VL <= run) {
                    if (accumulate) sum += VLOAD(to, column);
                    VSTORE(to, column, sum);
                } else {
                    real lanes[VL];
                    STORE_REALS(lanes, sum);
                    for (int lane = again; lane < VL && column + lane < run; lane++) {
                        STORE(to, column + lane, accumulate ? lanes[lane] + LOAD(to, column + lane) : lanes[lane]);
                    }
                }
            }
        }
    }
}
