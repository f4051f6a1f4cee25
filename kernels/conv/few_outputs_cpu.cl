// Convolution with few outputs on CPU devices, stride 1: the gradient of a first layer's data, or a last layer that
// makes an image. Vectors run along pixels.
//
//     y[image][output][pixel]  =  bias[output] + sum over (channel, tap) of lines[channel][pixel, tap] *
//         weights[channel, tap][output]
//
// lines    local, [channel of a chunk][row][pitch], what a block of R rows of pixels meets, with the padding
// weights  local, [channel][KW][KH][O]
// sums     local, [row of a block][output][columns]; columns is a multiple of VL
// x        (batch, channels, source_h, source_w)   y (batch, O, size_h, size_w)
//
// A panel of pixels would be filled for a few outputs alone. Here a vector of a line that is loaded serves all rows and
// outputs that it meets, whose sums stay in registers for a chunk of channels.
//
// O        outputs
// R        rows of pixels of a block
// KH, KW   taps of the kernel
// DH, DW   rows and elements from tap to tap
//
// Work-items, which are work-groups, share items by tickets: a block of rows of one image. Each asks for the next
// chunk's lines, or those of the next item of its ticket, while it multiplies.

#include "common/prefetch.cl"
#include "common/tickets.cl"
#include "conv/few_channels_lines.cl"

#define LINES (R + (KH - 1) * DH)  // rows of x that a block meets

// With `flip` w is (channels, O, KH, KW) and its kernels are turned by 180 degrees, as backward data needs them; else
// it is (O, channels, KH, KW).
SINGLE void conv_few_outputs(CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(bias), TENSOR(y), const int flip,
                             const int has_bias, const int accumulate, const int channels, const Grid grid,
                             const int pitch, const int columns, const int chunk, volatile global int *tickets,
                             local real *lines, local real *weights, local real *sums EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const long source = (long)grid.source_h * grid.source_w, plane = (long)grid.size_h * grid.size_w;
    const int blocks = (grid.size_h + R - 1) / R, items = grid.batch * blocks, workers = get_global_size(0);
    const int asked = (LINES * grid.source_w * (int)sizeof(stored) / CACHE_LINE + columns / VL) / (columns / VL);
    for (int c = 0; c < channels; c++) {
        for (int o = 0; o < O; o++) {
            global const stored *filter = OPEN(w) + (flip ? (long)c * O + o : (long)o * channels + c) * (KH * KW);
            for (int tap = 0; tap < KH * KW; tap++) {
                const int to = (tap % KW * KH + tap / KW) * O + o;
                weights[c * (KH * KW * O) + to] = LOAD(filter, flip ? KH * KW - 1 - tap : tap);
            }
        }
    }
    FOR_ITEMS(share) {
        const int image = share.item / blocks, row = share.item % blocks * R;
        global const stored *planes = OPEN(x) + (long)image * channels * source;
        for (int first = 0; first < channels; first += chunk) {
            const int count = min(chunk, channels - first);
            for (int c = 0; c < count; c++) {
                fill_lines(lines + c * (LINES * pitch), planes + (first + c) * source, 0, row + grid.begin_h, LINES,
                           pitch, -grid.begin_w, grid.source_h, grid.source_w);
            }
            // of the planes that are read next the first one, and the first row of it
            const bool more = first + chunk < channels, follows = more || share.item < share.last;
            const int item = more ? share.item : share.item + 1;
            const int next_row = clamp(item % blocks * R + grid.begin_h, 0, max(grid.source_h - 1, 0));
            global const stored *next =
                OPEN(x) + ((long)(item / blocks) * channels + (more ? first + chunk : 0)) * source +
                (long)next_row * grid.source_w;
            const int next_count = !follows ? 0 : min(count, more ? channels - first - chunk : channels);
            for (int column = 0; column < columns; column += VL) {
                realv sum[R][O];
#pragma unroll
                for (int u = 0; u < R; u++) {
#pragma unroll
                    for (int o = 0; o < O; o++) {
                        if (first)
                            sum[u][o] = LOAD_REALS(sums + (u * O + o) * columns + column);
                        else
                            sum[u][o] = has_bias ? LOAD(OPEN(bias), o) : 0;
                    }
                }
                local const real *line = lines + column, *weight = weights + first * (KH * KW * O);
                for (int c = 0; c < count; c++) {
                    if (c < next_count) {
                        global const char *early = (global const char *)(next + c * source);
                        for (int i = 0; i < asked; i++) PREFETCH(early + (column / VL * asked + i) * CACHE_LINE);
                    }
#pragma unroll 1
                    for (int j = 0; j < KW; j++) {
                        local const real *from = line + j * DW;
#pragma unroll
                        for (int r = 0; r < LINES; r++) {
                            const realv value = LOAD_REALS(from);
#pragma unroll
                            for (int i = 0; i < KH; i++) {
                                const int u = r - i * DH;
                                if (u >= 0 && u < R) {
#pragma unroll
                                    for (int o = 0; o < O; o++)
                                        sum[u][o] = fma(value, (realv)(weight[i * O + o]), sum[u][o]);
                                }
                            }
                            from += pitch;
                        }
                        weight += KH * O;
                    }
                    line += LINES * pitch;
                }
#pragma unroll
                for (int u = 0; u < R; u++) {
#pragma unroll
                    for (int o = 0; o < O; o++) STORE_REALS(sums + (u * O + o) * columns + column, sum[u][o]);
                }
            }
        }
        for (int o = 0; o < O; o++) {
            for (int u = 0; u < min(R, grid.size_h - row); u++) {
                local real *values = sums + (u * O + o) * columns;
                const long at = ((long)image * O + o) * plane + (long)(row + u) * grid.size_w;
                finish_run(values, grid.size_w, o, at PASS_EPILOGUE);
                store_run(OPEN(y) + at, values, grid.size_w, accumulate);
            }
        }
    }
}
