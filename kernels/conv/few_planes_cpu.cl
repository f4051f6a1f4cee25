// Convolution with few outputs, or of few channels, on CPU devices: a first layer and the gradient of its data, or a
// last layer that makes an image. Strides are 1 or 2. Vectors run along pixels.
//
//     y[image][output][pixel]  =  bias[output] + sum over (channel, tap) of lines[channel][pixel, tap] *
//         weights[channel, tap][output]
//
// lines    local, [channel of a chunk][row][SW][pitch], what a block of R rows of pixels meets, with the padding; at
//          stride 2 even columns apart from odd ones, so that neighbouring pixels meet neighbouring elements
// rows_of_x  local, [row][SW * pitch], the lines of a channel before that
// weights  local, [block of O outputs][channel][COLUMNS][KH][O], where COLUMNS is KW
// sums     local, [block of O outputs][row of a block][O][columns] where there are several chunks; columns is a
//          multiple of VL
// x        (batch, channels, source_h, source_w)   y (batch, outputs, size_h, size_w)
//
// A panel of pixels would be filled for a few outputs alone, or hold each element once for each tap. Here a vector of a
// line that is loaded serves many sums, which stay in registers for a chunk of channels.
//
// O            outputs of a block
// R            rows of pixels of a block
// KH, KW       taps of the kernel
// DH, DW       rows and elements from tap to tap
// SH, SW       and from pixel to pixel
// BY_LINES     0: multiplied tap by tap, as pairs always are; 1: line by line
// PAST_CACHES  y is too large to be found in a cache again
// PAIRS_OF_COLUMNS  at stride 2: operands are pairs of neighbouring columns of bfloat16, as rows of x have them, so
//              lines are [channel of a chunk][row][pitch] and COLUMNS half of KW. A last tap by itself meets its own
//              column alone
//
// Work-items, which are work-groups, share items by tickets: a block of rows of one image. Each asks for the next
// chunk's lines, or those of the next item of its ticket, while it multiplies.

#include "common/prefetch.cl"
#include "common/tickets.cl"
#include "conv/few_channels_lines.cl"

#define LINES ((R - 1) * SH + (KH - 1) * DH + 1)  // rows of x that a block meets
#define EACH(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)

// ADD_COLUMN adds the products of a column of taps: vectors at `from` and in the lines below it, times its weights.
#if PAIRS_OF_COLUMNS
#define COLUMNS ((KW + 1) / 2)
#define LINE_PITCH pitch  // operands of a row of x
#define COLUMN_OF(j) (j)
#define WEIGHT_OF(filter, i, j) \
    (filter[(i) * KW + 2 * (j)] | (2 * (j) + 1 < KW ? (uint)filter[(i) * KW + 2 * (j) + 1] << 16 : 0u))
#define MET(value, j) (KW % 2 && (j) == KW / 2 ? (value) & 0xffffu : (value))
#else
#define COLUMNS KW
#define LINE_PITCH (SW * pitch)
#define COLUMN_OF(j) ((j) * DW % SW * pitch + (j) * DW / SW)
#define WEIGHT_OF(filter, i, j) LOAD(filter, flip ? KH * KW - 1 - (i) * KW - (j) : (i) * KW + (j))
#define MET(value, j) (value)
#endif

#if BY_LINES
// A vector serves all rows that it meets, and weights are multiplied from memory.
#define ADD_COLUMN(sum, from, weight, j)                                                  \
    EACH(r, LINES) {                                                                      \
        const realv value = LOAD_REALS(from);                                             \
        EACH(i, KH) {                                                                     \
            const int u = (r - i * DH) / SH;                                              \
            if (r >= i * DH && (r - i * DH) % SH == 0 && u < R) {                         \
                EACH(o, O) sum[u][o] = fma(value, (realv)(weight[i * O + o]), sum[u][o]); \
            }                                                                             \
        }                                                                                 \
        from += LINE_PITCH;                                                               \
    }
#else
// A weight is loaded once for all rows. Unrolled over all taps, compilers would load vectors of weights first and spill
// them.
#define ADD_COLUMN(sum, from, weight, j)                                                     \
    _Pragma("unroll 1") for (int i = 0; i < KH; i++) {                                       \
        operandv values[R];                                                                  \
        EACH(u, R) values[u] = MET(LOAD_OPERANDS(from + (i * DH + u * SH) * LINE_PITCH), j); \
        EACH(o, O) {                                                                         \
            const operandv factor = weight[i * O + o];                                       \
            EACH(u, R) sum[u][o] = MULTIPLY_ADD(values[u], factor, sum[u][o]);               \
        }                                                                                    \
    }
#endif

#if SW == 2 && !PAIRS_OF_COLUMNS
// Sorts a row of 2 * pitch elements into a line of its even columns and one of its odd columns.
void sort_columns(local real *to, local const real *row, const int pitch) {
    for (int i = 0; i < pitch; i += VL) {
        const realv a = LOAD_REALS(row + 2 * i), b = LOAD_REALS(row + 2 * i + VL);
        STORE_REALS(to + i, ((realv)(a.even, b.even)));
        STORE_REALS(to + pitch + i, ((realv)(a.odd, b.odd)));
    }
}
#endif

// With `flip` w is (channels, outputs, KH, KW) and its kernels are turned by 180 degrees, as backward data needs them;
// else it is (outputs, channels, KH, KW).
SINGLE void conv_few_planes(CONST_TENSOR(x), CONST_TENSOR(w), CONST_TENSOR(bias), TENSOR(y), const int flip,
                            const int has_bias, const int accumulate, const int channels, const int outputs,
                            const Grid grid, const int pitch, const int columns, const int chunk,
                            volatile global int *tickets, local operand *lines, local operand *weights,
                            local real *sums, local real *end, local operand *rows_of_x EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const long source = (long)grid.source_h * grid.source_w, plane = (long)grid.size_h * grid.size_w;
    const int blocks = (grid.size_h + R - 1) / R, items = grid.batch * blocks, workers = get_global_size(0);
    const int asked = (LINES * grid.source_w * (int)sizeof(stored) / CACHE_LINE + columns / VL) / (columns / VL);
    const bool past = GOES_PAST(OPEN(y), !accumulate && grid.size_w % VL == 0);
    const int depth = KH * COLUMNS * O;
    for (int c = 0; c < channels; c++) {
        for (int o = 0; o < outputs; o++) {
            global const stored *filter = OPEN(w) + (flip ? (long)c * outputs + o : (long)o * channels + c) * (KH * KW);
            local operand *to = weights + (o / O * channels + c) * depth + o % O;
            for (int j = 0; j < COLUMNS; j++) {
                for (int i = 0; i < KH; i++) to[(j * KH + i) * O] = WEIGHT_OF(filter, i, j);
            }
        }
    }
    FOR_ITEMS(share) {
        const int image = share.item / blocks, row = share.item % blocks * R;
        global const stored *planes = OPEN(x) + (long)image * channels * source;
        for (int first = 0; first < channels; first += chunk) {
            const int count = min(chunk, channels - first);
            for (int c = 0; c < count; c++) {
                local operand *to = lines + c * (LINES * LINE_PITCH);
                local line_number *filled = (local line_number *)(SW > 1 && !PAIRS_OF_COLUMNS ? rows_of_x : to);
                fill_lines(filled, planes + (first + c) * source, 0, row * SH + grid.begin_h, LINES, SW * pitch,
                           -grid.begin_w, grid.source_h, grid.source_w);
#if SW == 2 && !PAIRS_OF_COLUMNS
                for (int r = 0; r < LINES; r++)
                    sort_columns(to + r * (SW * pitch), rows_of_x + r * (SW * pitch), pitch);
#endif
            }
            // of the planes that are read next the first one, and the first row of it
            const bool more = first + chunk < channels, follows = more || share.item < share.last;
            const int item = more ? share.item : share.item + 1;
            const int next_row = clamp(item % blocks * R * SH + grid.begin_h, 0, max(grid.source_h - 1, 0));
            global const stored *next =
                OPEN(x) + ((long)(item / blocks) * channels + (more ? first + chunk : 0)) * source +
                (long)next_row * grid.source_w;
            for (int output = 0; output < outputs; output += O) {
                const int there = min(outputs - output, O);
                const int next_count = !follows || output ? 0 : min(count, more ? channels - first - chunk : channels);
                local real *kept = sums + output * R * columns;
                for (int column = 0; column < columns; column += VL) {
                    realv sum[R][O];
                    EACH(u, R) {
                        EACH(o, O) {
                            if (first)
                                sum[u][o] = LOAD_REALS(kept + (u * O + o) * columns + column);
                            else
                                sum[u][o] = has_bias ? LOAD(OPEN(bias), output + min(o, there - 1)) : 0;
                        }
                    }
                    local const operand *line = lines + column;
                    local const operand *weight = weights + (output / O * channels + first) * depth;
                    for (int c = 0; c < count; c++) {
                        if (c < next_count) {
                            global const char *early = (global const char *)(next + c * source);
                            for (int i = 0; i < asked; i++) PREFETCH(early + (column / VL * asked + i) * CACHE_LINE);
                        }
#pragma unroll 1
                        for (int j = 0; j < COLUMNS; j++) {
                            local const operand *from = line + COLUMN_OF(j);
                            ADD_COLUMN(sum, from, weight, j)
                            weight += KH * O;
                        }
                        line += LINES * LINE_PITCH;
                    }
                    if (more) {
                        EACH(u, R) { EACH(o, O) STORE_REALS(kept + (u * O + o) * columns + column, sum[u][o]); }
                        continue;
                    }
                    const int length = min(grid.size_w - column, VL), rows = min(grid.size_h - row, R);
                    const long at = ((long)image * outputs + output) * plane + (long)row * grid.size_w + column;
                    EACH(u, R) {
                        EACH(o, O) {
                            if (u < rows && o < there) {
                                const long to = at + o * plane + (long)u * grid.size_w;
                                if (length == VL) {
                                    realv value = EPILOGUE_VECTOR(sum[u][o], output + o, to);
                                    if (accumulate) value += VLOAD(OPEN(y), to);
                                    PUT_VECTOR(past, OPEN(y), to, value)
                                } else {
                                    STORE_REALS(end, sum[u][o]);
                                    finish_run(end, length, output + o, to PASS_EPILOGUE);
                                    store_run(OPEN(y) + to, end, length, accumulate);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
