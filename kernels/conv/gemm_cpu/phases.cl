// Backward data with a stride on CPU devices, as products of matrices that share a panel.
//
//     dx[image][group][output][u * stride + a]  =  sum over (channel, tap of phase a) of weights
//         * dy[channel][u + offset]
//
// A phase is a remainder a of positions divided by the stride, on each axis; it meets every `distance`-th tap of the
// kernel. All phases of a pixel u meet dy in the same neighbourhood, the grid's taps, which the panel holds once. A row
// of phases is what the phases have in common that differ on the last axis alone: their results are neighbours in dx,
// and are stored together.
//
// weights   operands, [group][tile of MR outputs][row of phases][phase][tap][channel][MR], made by pack_phases; where
//           phases are merged [group][row of phases][tile of MR rows (phase, output)][tap][channel][MR], with the
//           grid's taps on the last axis, and zeros where a phase has no such tap
//           With AMX the channels of a tap are packed in blocks of steps, as common/amx.cl reads them; their number is
//           a multiple of a block's, and phases are not merged
// panel     local, [tile of COLS pixels][tap][channel][COLS], one block of pixels, a part of the channels at a time
//           [tap of the other axes][channel][COLS + shift] with a `shift`: the grid's rows are longer by it, so that
//           what the taps of a row meet are pieces of one row of dy; pixels beyond the target are not stored
// staged    local, the sums of a tile for a row of phases, [phase][MR outputs][COLS], or [phase, output][COLS]
// dx        (batch, groups * outputs, size)
//
// Work-items, which are work-groups, share items by tickets: one block of pixels (innermost), one block
// of output tiles, one group.

#include "common/amx.cl"
#include "conv/gemm_cpu/pack.cl"
#include "conv/gemm_cpu/panel.cl"
#include "conv/gemm_cpu/block.cl"

// What phases meet on an axis: the first tap of the grid, the number of taps, and that of all phases before.
enum { PHASE_FIRST, PHASE_TAPS, PHASE_BEFORE, PHASE_FIELDS };

// The phase whose dx meets a tap of the kernel.
int phase_of(const int tap, const int stride, const int pad, const int dilate) {
    const int rest = (dilate * tap - pad) % stride;
    return rest < 0 ? rest + stride : rest;
}

// Describes the phases of an axis in a table; returns where the next one starts.
local int *find_phases(local int *table, const int kernel_size, const int stride, const int pad, const int dilate,
                       const int begin, const int step) {
    for (int i = 0; i < stride * PHASE_FIELDS; i++) table[i] = 0;
    for (int tap = 0; tap < kernel_size; tap++) {  // the last tap meets the first offset
        const int a = phase_of(tap, stride, pad, dilate);
        table[a * PHASE_FIELDS + PHASE_FIRST] = ((a + pad - dilate * tap) / stride - begin) / step;
        table[a * PHASE_FIELDS + PHASE_TAPS]++;
    }
    for (int a = 1; a < stride; a++) {
        local int *phase = table + a * PHASE_FIELDS;
        phase[PHASE_BEFORE] = phase[PHASE_BEFORE - PHASE_FIELDS] + phase[PHASE_TAPS - PHASE_FIELDS];
    }
    return table + stride * PHASE_FIELDS;
}

#define FIND_AXIS(table, axis)                                                                                     \
    find_phases(table, met.kernel_##axis, met.stride_##axis, met.pad_##axis, met.dilate_##axis, grid.begin_##axis, \
                grid.step_##axis)
#define FIND_PHASES(depths, heights, widths, table) \
    local int *depths = table;                      \
    local int *heights = FIND_AXIS(depths, d);      \
    local int *widths = FIND_AXIS(heights, h);      \
    FIND_AXIS(widths, w);

// packed for conv_phases, from w (groups * channels, outputs, kernel). Rows beyond the outputs repeat the last one or
// are zeros; their products are not stored. One work-item packs `range` channels of a tile of outputs, or of all rows
// if phases are merged, to `units` tiles for each row of phases. places: local, an int for each tap of the kernel.
kernel void pack_phases(CONST_TENSOR(w), TENSOR_OF(operand, packed), const int channels, const int outputs,
                        const int merged, const int units, const int range, const Grid grid, const PhaseTaps met,
                        local int *table, local int *places) {
    const int m_tile = get_global_id(1), m_tiles = get_global_size(1);
    const int group = get_global_id(2), groups = get_global_size(2);
    const int first = get_global_id(0) * range, last = min(first + range, channels);
    const int m = merged ? 0 : m_tile * MR, rows = merged ? outputs : min(outputs - m, MR);
    const int kd = met.kernel_d, kh = met.kernel_h, kw = met.kernel_w, all_taps = kd * kh * kw;
    const int widths_taps = merged ? units * grid.taps_w : kw;  // of all tiles of a row of phases
    const long from = ((long)group * channels * NUMBERS * outputs + m) * all_taps;
    const long channel_size = (long)outputs * all_taps;
    const long left = (long)groups * channels * NUMBERS * channel_size - from;
    global const stored *ws = OPEN(w) + from;
    global operand *out = OPEN(packed) + ((long)group * m_tiles + m_tile) * kd * kh * widths_taps * channels * MR;
    FIND_PHASES(depths, heights, widths, table)
    for (int at = 0; merged && at < kd * kh * widths_taps; at++) {
        for (int i = first * MR; i < last * MR; i++) out[(long)at * channels * MR + i] = 0;
    }
    for (int tap = 0; tap < all_taps; tap++) {
        const int td = tap / kw / kh, th = tap / kw % kh, tw = tap % kw;
        const int a = phase_of(tw, met.stride_w, met.pad_w, met.dilate_w);
        local const int *d = depths + phase_of(td, met.stride_d, met.pad_d, met.dilate_d) * PHASE_FIELDS;
        local const int *h = heights + phase_of(th, met.stride_h, met.pad_h, met.dilate_h) * PHASE_FIELDS;
        local const int *l = widths + a * PHASE_FIELDS;
        const int row = (kd - 1 - td) / met.distance_d * h[PHASE_TAPS] + (kh - 1 - th) / met.distance_h;
        const int row_taps = d[PHASE_TAPS] * h[PHASE_TAPS];
        const int begin = (d[PHASE_BEFORE] * kh + d[PHASE_TAPS] * h[PHASE_BEFORE]) * widths_taps;
        const int number = (kw - 1 - tw) / met.distance_w;  // among the phase's taps
        if (!merged) {
            places[tap] = begin + row_taps * l[PHASE_BEFORE] + row * l[PHASE_TAPS] + number;
            continue;
        }
        const int place = begin + row * grid.taps_w + l[PHASE_FIRST] + number * met.tap_step_w;
        for (int output = 0; output < outputs; output++) {
            const int m_row = a * outputs + output;
            global operand *to = out + (long)(place + m_row / MR * row_taps * grid.taps_w) * channels * MR + m_row % MR;
            for (int channel = first; channel < last; channel++) {
                to[channel * MR] =
                    WEIGHT_AT(ws + channel * NUMBERS * channel_size + output * all_taps + tap, channel_size);
            }
        }
    }
    for (int channel = first; !merged && channel < last; channel++) {
        const long at = channel * NUMBERS * channel_size;
        global const stored *wc = ws + at;
#if AMX
        for (int tap = 0; tap < all_taps; tap++) {
            global operand *to = out + (long)places[tap] * channels * MR + PLACE(channel);
            for (int i = 0; i < MR; i++)
                to[i * TILE_STEPS] = WEIGHT_AT(wc + min(i, rows - 1) * all_taps + tap, channel_size);
        }
#else
        operand turned[MAX_TURNED * MR];
        const bool turn = turn_taps(turned, wc, left - at, rows, all_taps, channel_size, all_taps);
        for (int tap = 0; tap < all_taps; tap++) {
            put_tap(out + ((long)places[tap] * channels + channel) * MR, turned, turn, wc, rows, all_taps, channel_size,
                    tap);
        }
#endif
    }
}

// Elements of two vectors in turn.
#define INTERLEAVE(a, b, low, high) \
    realv low, high;                \
    low.even = a.lo;                \
    low.odd = b.lo;                 \
    high.even = a.hi;               \
    high.odd = b.hi;

// line[u * phases + a] = rows[a * pitch + u] for a tile's pixels u.
void interleave(local real *line, local const real *rows, const int pitch, const int phases) {
    if (phases == 2) {
        for (int v = 0; v < COLS; v += VL) {
            const realv a = LOAD_REALS(rows + v), b = LOAD_REALS(rows + pitch + v);
            INTERLEAVE(a, b, low, high)
            STORE_REALS(line + 2 * v, low);
            STORE_REALS(line + 2 * v + VL, high);
        }
        return;
    }
    if (phases == 4) {
        for (int v = 0; v < COLS; v += VL) {
            const realv a = LOAD_REALS(rows + v), b = LOAD_REALS(rows + pitch + v);
            const realv c = LOAD_REALS(rows + 2 * pitch + v), d = LOAD_REALS(rows + 3 * pitch + v);
            INTERLEAVE(a, c, even_low, even_high)
            INTERLEAVE(b, d, odd_low, odd_high)
            INTERLEAVE(even_low, odd_low, first, second)
            INTERLEAVE(even_high, odd_high, third, fourth)
            STORE_REALS(line + 4 * v, first);
            STORE_REALS(line + 4 * v + VL, second);
            STORE_REALS(line + 4 * v + 2 * VL, third);
            STORE_REALS(line + 4 * v + 3 * VL, fourth);
        }
        return;
    }
    for (int a = 0; a < phases; a++) {
        for (int u = 0; u < COLS; u++) line[u * phases + a] = rows[a * pitch + u];
    }
}

// Where pixels of a run are stored in a plane of dx, side by side.
typedef struct {
    long at;
    int image, length;  // no length: outside
} Piece;

Piece piece_of(local const int *run, const int at, const int stop, const int d_phase, const int h_phase,
               const Grid grid, const PhaseTaps met) {
    const int d = (run[RUN_D] - grid.begin_d) * met.stride_d + d_phase;
    const int h = (run[RUN_H] - grid.begin_h) * met.stride_h + h_phase;
    const int w = (run[RUN_W] - grid.begin_w + at - run[RUN_AT]) * met.stride_w;
    Piece piece;
    piece.at = ((long)d * met.size_h + h) * met.size_w + w;
    piece.image = run[RUN_IMAGE];
    piece.length = d < met.size_d && h < met.size_h ? min((stop - at) * met.stride_w, met.size_w - w) : 0;
    return piece;
}

kernel void conv_phases(CONST_TENSOR(dy), TENSOR_OF(const operand, weights), TENSOR(dx), const int accumulate,
                        const int channels, const int outputs, const int groups, const int merged, const int units,
                        const Grid grid, const PhaseTaps met, const int shift, const int block_tiles,
                        const int block_rows, const int part, volatile global int *tickets, local cell *panel,
                        local real *staged, local real *line, local int *runs, local int *table, local real *kept) {
    const long pixels = (long)grid.size_d * grid.size_h * grid.size_w, all = grid.batch * pixels;
    const int m_tiles = merged ? 1 : (outputs + MR - 1) / MR;
    const int rows_of_phases = met.stride_d * met.stride_h, phases = met.stride_w;
    const int width = COLS + (shift + VL - 1) / VL * VL, tap_pitch = part * width;
    const int pitch = grid.taps_d * grid.taps_h * (shift ? 1 : grid.taps_w) * tap_pitch + VL;
    const int hd_taps = grid.taps_d * grid.taps_h, widths_taps = merged ? units * grid.taps_w : met.kernel_w;
    const long source = (long)grid.source_d * grid.source_h * grid.source_w,
               image_size = groups * channels * PLANES * source;
    const long row_size = (long)met.size_d * met.size_h * met.size_w;
    const long image_step = (long)groups * outputs * row_size;
    const Blocks blocks = blocks_of(all, block_tiles, m_tiles, block_rows);
    const int items = blocks.across * blocks.down * groups, workers = get_global_size(0);
    FIND_PHASES(depths, heights, widths, table)
    Grid rows = grid;
    if (shift) rows.taps_w = 1;
#if AMX
    set_tiles();
#endif

    FOR_ITEMS(share) {
        const Block block = block_of(&blocks, share.item);
        const int group = block.group, count = block.count;
        const long first = block.first, left = (grid.batch * groups - group) * channels * PLANES * source;
        const int cut = (int)min((long)count + shift, all - first);
        cut_runs(runs, first, cut, rows);
        for (int from = 0; from < channels; from += part) {
            const int to = min(from + part, channels);
#if KEEP_SUMS
            const bool add = accumulate;
#else
            const bool add = accumulate || from;
#endif
            fill_panel(panel, COLS, COLS + shift, width, tap_pitch, pitch, runs, count, cut,
                       OPEN(dy) + group * channels * PLANES * source, image_size, left, from * hd_taps, to * hd_taps,
                       rows);
            for (int m_tile = block.m_first; m_tile < block.m_last; m_tile++) {
                const int m = m_tile * MR, m_rows = merged ? outputs : min(MR, outputs - m);
                global stored *planes = OPEN(dx) + ((long)group * outputs + m) * row_size;
                const long of_tile = (long)met.kernel_d * met.kernel_h * widths_taps * channels * MR;
                global const operand *next_weights =
                    OPEN(weights) + ((long)group * m_tiles + m_tile) * of_tile + from * MR;
                for (int row = 0; row < rows_of_phases; row++) {
                    const int d_phase = row / met.stride_h, h_phase = row % met.stride_h;
                    local const int *d_taps = depths + d_phase * PHASE_FIELDS,
                                    *h_taps = heights + h_phase * PHASE_FIELDS;
                    const int row_taps = d_taps[PHASE_TAPS] * h_taps[PHASE_TAPS];
                    local const int *tile_run = runs;
                    for (int tile = 0; tile * COLS < count; tile++) {
                        const int begin = tile * COLS, end = min(begin + COLS, count);
                        while (tile_run[RUN_AT] + tile_run[RUN_LENGTH] <= begin) tile_run += RUN_FIELDS;
                        // what is stored after the products is asked for before them
                        local const int *next_run = tile_run;
                        for (int at = begin; at < end; next_run += RUN_FIELDS) {
                            const int stop = min(next_run[RUN_AT] + next_run[RUN_LENGTH], end);
                            const Piece piece = piece_of(next_run, at, stop, d_phase, h_phase, grid, met);
                            for (int i = 0; i < m_rows; i++) {
                                global stored *xs = planes + piece.image * image_step + i * row_size + piece.at;
                                for (int l = 0; l < piece.length; l += 64 / (int)sizeof(stored))
                                    __builtin_prefetch(xs + l, 1);
                            }
                            at = stop;
                        }
                        global const operand *a = next_weights;
                        for (int unit = 0; unit < units; unit++) {
                            const int first_w = merged ? 0 : widths[unit * PHASE_FIELDS + PHASE_FIRST];
                            const int taps_w = merged ? grid.taps_w : widths[unit * PHASE_FIELDS + PHASE_TAPS];
                            const int step_w = merged ? 1 : met.tap_step_w;
#if KEEP_SUMS
                            local real *sums =
                                kept +
                                ((((m_tile - block.m_first) * rows_of_phases + row) * block_tiles + tile) * units +
                                 unit) *
                                    MR * COLS;
#endif
#if AMX
                            local real *result = to < channels ? sums : staged + unit * MR * COLS;
                            begin_tiles(result, sums, from > 0);
#else
                            realv acc[MR][NV];
                            TILE_SET(acc, (realv)(0))
#if KEEP_SUMS
                            if (from > 0) {
                                TILE_LOAD(acc, sums, COLS)
                            }
#endif
#endif
                            for (int tap = 0; tap < row_taps * taps_w; tap++) {
                                const int hd = tap / taps_w;
                                const int d = d_taps[PHASE_FIRST] + hd / h_taps[PHASE_TAPS] * met.tap_step_d;
                                const int h = h_taps[PHASE_FIRST] + hd % h_taps[PHASE_TAPS] * met.tap_step_h;
                                const int hd_at = d * grid.taps_h + h, at_w = first_w + tap % taps_w * step_w;
                                const int at = shift ? hd_at * tap_pitch + at_w * grid.step_w
                                                     : (hd_at * grid.taps_w + at_w) * tap_pitch;
                                local const cell *b = panel + tile * pitch + at;
                                global const operand *a_channel = a;
#if AMX
                                add_tiles(result, a_channel, TILE_STEPS, BLOCK_OPERANDS, b, (to - from) / TILE_STEPS);
#else
                                for (int channel = from; channel < to; channel++) {
                                    TILE_STEP(acc, a_channel[i_], vector_[v_] = LOAD_OPERANDS(b + v_ * VL))
                                    a_channel += MR;
                                    b += width;
                                }
#endif
                                a += channels * MR;
                            }
#if AMX
                            end_tiles(result);
#else
#if KEEP_SUMS
                            if (to < channels) {
                                TILE_STORE(acc, sums, COLS)
                                continue;
                            }
#endif
                            TILE_STORE(acc, staged + unit * MR * COLS, COLS)
#endif
                        }
#if KEEP_SUMS
                        if (to < channels) continue;
#endif
                        for (int i = 0; i < m_rows; i++) {
                            local real *values = staged + i * COLS;
                            if (phases > 1) {
                                interleave(line, values, (merged ? outputs : MR) * COLS, phases);
                                values = line;
                            }
                            local const int *run = tile_run;
                            for (int at = begin; at < end; run += RUN_FIELDS) {
                                const int stop = min(run[RUN_AT] + run[RUN_LENGTH], end);
                                const Piece piece = piece_of(run, at, stop, d_phase, h_phase, grid, met);
                                global stored *xs = planes + piece.image * image_step + i * row_size + piece.at;
                                if (piece.length > 0) store_run(xs, values + (at - begin) * phases, piece.length, add);
                                at = stop;
                            }
                        }
                    }
                    next_weights += (long)row_taps * widths_taps * channels * MR;
                }
            }
        }
    }
#if AMX
    release_tiles();
#endif
}
