// Depthwise convolution on CPU devices, in all directions, for every kernel, stride, dilation, padding and multiplier.
//
// x (batch, channels, source_h, source_w)   w (channels * multiplier, taps_h, taps_w)
// y (batch, channels * multiplier, size_h, size_w); `grid` has y's pixels over x
//
// A work-item takes one tile of `item_planes` planes, one after the other; cpu_scratch.cl says how a tile lies in
// scratch. `planes` is batch * channels; tiles are of y, and for the data of the lines of a phase of x.

#include "common/epilogue.cl"
#include "conv/depthwise/cpu_scratch.cl"
#include "conv/depthwise/planes.cl"

#ifndef TAPS
#define TAPS 9  // filter taps that are summed side by side
#endif

// Offsets of the taps in a tile of x that is split by the phases of the stride.
void input_offsets(local int *offsets, const int phases_w, const Grid grid, const PlaneTile tile) {
    SIZES
    const int pitch = tile.pitch, plane_size = tile.plane_size;
    for (int i = 0; i < grid.taps_h; i++)
        for (int j = 0; j < grid.taps_w; j++)
            offsets[i * grid.taps_w + j] =
                (i * dh % sh * phases_w + j * dw % sw) * plane_size + i * dh / sh * pitch + j * dw / sw;
}

kernel void depthwise_forward(CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(b), TENSOR(y), const int has_bias,
                              const int accumulate, const int channels, const int multiplier, const Grid grid,
                              const PlaneTile tile, const int item_planes, local real *scratch, local real *result,
                              local real *weights, local int *offsets EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    SIZES
    const int pitch = tile.pitch, plane_size = tile.plane_size;
    const int taps = grid.taps_h * grid.taps_w, reach_h = (grid.taps_h - 1) * dh, reach_w = (grid.taps_w - 1) * dw;
    const int phases_h = min(sh, reach_h + 1), phases_w = min(sw, reach_w + 1);
    const int column = get_global_id(0) * tile.w, row = get_global_id(1) * tile.h;
    const int columns = min(tile.w, ow - column), rows = min(tile.h, oh - row);
    const long planes = (long)grid.batch * channels;
    const long first = get_global_id(2) * (long)item_planes, last = min(first + item_planes, planes);
    const long x_size = (long)ih * iw, y_size = (long)oh * ow;
    input_offsets(offsets, phases_w, grid, tile);
    for (long p = first; p < last; p++) {
        read_tile(scratch, pitch, plane_size, OPEN(x) + p * x_size, (planes - p) * x_size, ih, iw,
                  row * sh + grid.begin_h, column * sw + grid.begin_w, (rows - 1) * sh + reach_h + 1, sh, sw, phases_h,
                  phases_w);
        for (int m = 0; m < multiplier; m++) {
            const long o = p % channels * multiplier + m;
            for (int t = 0; t < taps; t++) weights[t] = LOAD(OPEN(w), o * taps + t);
            correlate(result, scratch, offsets, weights, taps, (rows - 1) * pitch + columns, false,
                      has_bias ? LOAD(OPEN(b), o) : 0);
#ifdef EPILOGUE
            for (int i = 0; i < (rows - 1) * pitch + columns; i += VL)
                VSTORE_REAL(result + i, EPILOGUE_VECTOR(VLOAD_REAL(result + i), o, 0));
#endif
            const long plane = (p * multiplier + m) * y_size;
            const long end = columns < ow ? 0
                             : rows < oh  ? plane + (row + rows) * (long)ow
                                          : last * multiplier * y_size;
            for (int u = 0; u < rows; u++) {
                const long at = plane + (row + u) * (long)ow + column;
                write_row(OPEN(y) + at, result + u * pitch, columns, end - at, accumulate);
            }
        }
    }
}

// dx at phase (a, b) of the stride is a sum over the taps with a - begin_h - i * dh and b - begin_w - j * dw multiples
// of it.
kernel void depthwise_backward_data(CONST_TENSOR(dy), CONST_TENSOR(w), TENSOR(dx), const int accumulate,
                                    const int channels, const int multiplier, const Grid grid, const PlaneTile tile,
                                    const int item_planes, local real *scratch, local real *result, local real *weights,
                                    local int *offsets, local int *order, local int *starts, local real *line) {
    SIZES
    const int pitch = tile.pitch, plane_size = tile.plane_size;
    const int taps = grid.taps_h * grid.taps_w;
    const int column = get_global_id(0) * tile.w, row = get_global_id(1) * tile.h;  // of a phase's lines
    const int lines = min(tile.h, (ih + sh - 1) / sh - row), width = min(tile.w, (iw + sw - 1) / sw - column);
    const long planes = (long)grid.batch * channels;
    const long first = get_global_id(2) * (long)item_planes, last = min(first + item_planes, planes);
    const long x_size = (long)ih * iw, y_size = (long)oh * ow;
    int met = 0;
    for (int a = 0; a < sh; a++)
        for (int b = 0; b < sw; b++) {
            starts[a * sw + b] = met;
            for (int i = 0; i < grid.taps_h; i++) {
                if ((a - grid.begin_h - i * dh) % sh) continue;
                for (int j = 0; j < grid.taps_w; j++) {
                    if ((b - grid.begin_w - j * dw) % sw) continue;
                    const int line_met = (a - grid.begin_h - i * dh) / sh - tile.low_h;
                    offsets[met] = line_met * pitch + (b - grid.begin_w - j * dw) / sw - tile.low_w;
                    order[met++] = i * grid.taps_w + j;
                }
            }
        }
    starts[sh * sw] = met;
    for (long p = first; p < last; p++) {
        for (int m = 0; m < multiplier; m++) {
            const long from = (p * multiplier + m) * y_size, o = p % channels * multiplier + m;
            read_tile(scratch, pitch, plane_size, OPEN(dy) + from, planes * multiplier * y_size - from, oh, ow,
                      row + tile.low_h, column + tile.low_w, lines + tile.more_h, 1, 1, 1, 1);
            for (int t = 0; t < taps; t++) weights[t] = LOAD(OPEN(w), o * taps + order[t]);
            for (int f = 0; f < sh * sw; f++)
                correlate(result + f * tile.result_size, scratch, offsets + starts[f], weights + starts[f],
                          starts[f + 1] - starts[f], (lines - 1) * pitch + width, m > 0, 0);
        }
        const int columns = min(width * sw, iw - column * sw), rows = min(lines * sh, ih - row * sh);
        const long end = columns < iw ? 0 : rows < ih ? p * x_size + (row * sh + rows) * (long)iw : last * x_size;
        for (int r = 0; r < rows; r++) {
            const long at = p * x_size + (row * sh + r) * (long)iw + column * sw;
            local const real *from = result + r % sh * sw * tile.result_size + r / sh * pitch;
            if (sw > 1) {
                interleave(line, from, tile.result_size, sw, columns);
                from = line;
            }
            write_row(OPEN(dx) + at, from, columns, end - at, accumulate);
        }
    }
}

// sums[t] += sum over f < count of gradient[f] * scratch[offsets[t] + f], each lane of sums[t] on its own.
void add_products(local real *sums, local const real *gradient, local const real *scratch, local const int *offsets,
                  const int taps, const int count) {
    for (int t = 0; t < taps; t += TAPS) {
        realv sum[TAPS];
        int offset[TAPS];
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            offset[k] = offsets[min(t + k, taps - 1)];
            sum[k] = VLOAD_REAL(sums + min(t + k, taps - 1) * VL);
        }
        for (int f = 0; f < count; f += VL) {
            const realv g = VLOAD_REAL(gradient + f);
#pragma unroll
            for (int k = 0; k < TAPS; k++) sum[k] = fma(g, VLOAD_REAL(scratch + offset[k] + f), sum[k]);
        }
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            if (t + k < taps) VSTORE_REAL(sums + (t + k) * VL, sum[k]);
    }
}

// partial[split][o][t], or dw itself if there is one split. A split takes `split_tiles` of the tiles of all images.
kernel void depthwise_backward_filter(CONST_TENSOR(x), CONST_TENSOR(dy), TENSOR(dw_out), TENSOR_OF(real, partial),
                                      const int accumulate, const int channels, const int multiplier, const Grid grid,
                                      const PlaneTile tile, const int item_channels, const int split_tiles,
                                      local real *scratch, local real *gradient, local real *sums, local int *offsets) {
    SIZES
    const int pitch = tile.pitch, plane_size = tile.plane_size;
    const int taps = grid.taps_h * grid.taps_w, reach_h = (grid.taps_h - 1) * dh, reach_w = (grid.taps_w - 1) * dw;
    const int phases_h = min(sh, reach_h + 1), phases_w = min(sw, reach_w + 1);
    const int tiles_h = (oh + tile.h - 1) / tile.h, tiles_w = (ow + tile.w - 1) / tile.w;
    const long planes = (long)grid.batch * channels;
    const int split = get_global_id(0), first = get_global_id(1) * item_channels;
    const long from = split * (long)split_tiles, to = min(from + split_tiles, (long)grid.batch * tiles_h * tiles_w);
    const long x_size = (long)ih * iw, y_size = (long)oh * ow;
    input_offsets(offsets, phases_w, grid, tile);
    for (int c = first; c < min(first + item_channels, channels); c++) {
        for (int t = 0; t < multiplier * taps; t++) VSTORE_REAL(sums + t * VL, (realv)(0));
        for (long at = from; at < to; at++) {
            const long p = at / tiles_w / tiles_h * channels + c;
            const int column = at % tiles_w * tile.w, row = at / tiles_w % tiles_h * tile.h;
            const int columns = min(tile.w, ow - column), rows = min(tile.h, oh - row);
            const int lines = (rows - 1) * sh + reach_h + 1;
            read_tile(scratch, pitch, plane_size, OPEN(x) + p * x_size, (planes - p) * x_size, ih, iw,
                      row * sh + grid.begin_h, column * sw + grid.begin_w, lines, sh, sw, phases_h, phases_w);
            // Behind a phase's last line, zeros: a product with a zero of the gradient has to be zero.
            for (int f = 0; f < phases_h * phases_w; f++)
                VSTORE_REAL(scratch + f * plane_size + (lines - f / phases_w + sh - 1) / sh * pitch, (realv)(0));
            for (int m = 0; m < multiplier; m++) {
                const long plane = p * multiplier + m;
                for (int u = 0; u < rows; u++) {
                    const long start = plane * y_size + (row + u) * (long)ow;
                    read_row(gradient + u * pitch, OPEN(dy) + start, planes * multiplier * y_size - start, column, 1,
                             column + columns, pitch);
                }
                VSTORE_REAL(gradient + rows * pitch, (realv)(0));
                add_products(sums + m * taps * VL, gradient, scratch, offsets, taps, (rows - 1) * pitch + columns);
            }
        }
        for (int t = 0; t < multiplier * taps; t++) {
            const real sum = sum_lanes(sums + t * VL);
            const long o = (long)c * multiplier * taps + t;
            if (get_global_size(0) > 1)
                OPEN(partial)[(long)split * channels * multiplier * taps + o] = sum;
            else
                STORE(OPEN(dw_out), o, accumulate ? LOAD(OPEN(dw_out), o) + sum : sum);
        }
    }
}
