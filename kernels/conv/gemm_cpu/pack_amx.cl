// The weights of products by AMX, packed as common/amx.cl reads them: tiles of 32 rows, in blocks of 16 steps.

#include "common/amx.cl"
#include "conv/grid.cl"

// The tap of the kernel that is met as number i.
int tap_met(const int i, const Taps met) {
    const int l = i % met.taps_w, h = i / met.taps_w % met.taps_h, d = i / met.taps_w / met.taps_h;
    const int row = (met.first_d + d * met.step_d) * met.kernel_h + met.first_h + h * met.step_h;
    return row * met.kernel_w + met.first_w + l * met.step_w;
}

#define REVERSED(a) __builtin_shufflevector(a, a, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)

// Operands of one row and of `taps` taps, at most a vector of them, in the kernel's order or in `reverse`; `at` is
// where the first channel's are in w, of `size` elements, the second channel's are `channel_size` further.
operandv taps_of(global const stored *w, const long at, const long channel_size, const int taps, const bool reverse,
                 const long size) {
    if (!reverse && at + channel_size + VL <= size)
        return JOIN(CAT(vload, VL)(0, w + at), CAT(vload, VL)(0, w + at + channel_size));
    if (reverse && at + taps >= VL) {
        global const stored *last = w + at + taps - VL;
        return REVERSED(JOIN(CAT(vload, VL)(0, last), CAT(vload, VL)(0, last + channel_size)));
    }
    operand lanes[VL];
    for (int i = 0; i < taps; i++) {
        const long tap = at + (reverse ? taps - 1 - i : i);
        lanes[i] = w[tap] | (uint)w[tap + channel_size] << 16;
    }
    return LOAD_OPERANDS(lanes);
}

// packed[group][tile][step / 16][row][step % 16] = w at (row, channel, tap), the steps being pairs of channels, and of
// each its taps; `met` says which taps of the kernel they are. Rows beyond m_count repeat the last one; their products
// are not stored. Steps beyond the last one are zeros. One work-item packs `range` pairs of channels of one tile.
// Strides of w, in elements: m_size from row to row, channel_size from channel to channel.
kernel void pack_amx(CONST_TENSOR(w), TENSOR_OF(operand, packed), const int channels, const int m_count,
                     const long m_size, const long channel_size, const long group_size, const int range,
                     const Taps met) {
    const int m_tile = get_global_id(1), group = get_global_id(2), m_tiles = get_global_size(1);
    const int first = get_global_id(0) * range, last = min(first + range, channels);
    const int m = m_tile * AMX_ROWS, rows = min(m_count - m, AMX_ROWS), taps = met.taps_d * met.taps_h * met.taps_w;
    const long steps = (long)channels * taps, depth = WHOLE_BLOCKS(steps);
    global const stored *ws = OPEN(w) + group * group_size + m * m_size;
    global operand *out = OPEN(packed) + ((long)group * m_tiles + m_tile) * depth * AMX_ROWS;
    int channel = first;
#if VL == TILE_STEPS
    // one tap, whole blocks: vectors of steps of a row where they lie together, or of rows of a step
    const bool along = channel_size == 1, across = m_size == 1 && rows == AMX_ROWS;
    for (; taps == 1 && (along || across) && channel + TILE_STEPS <= last; channel += TILE_STEPS) {
        global operand *to = out + PLACE(channel);
        global const stored *from = ws + channel * NUMBERS * channel_size;
        if (along) {
            for (int i = 0; i < AMX_ROWS; i++) {
                STORE_OPERANDS(to + i * TILE_STEPS, OPERANDS_AT(from + min(i, rows - 1) * m_size, 0));
            }
            continue;
        }
        for (int lower = 0; lower < AMX_ROWS; lower += VL) {
            operandv a[TILE_STEPS], b[TILE_STEPS];
#pragma unroll
            for (int k = 0; k < TILE_STEPS; k++) {
                global const stored *row = from + k * NUMBERS * channel_size + lower;
                a[k] = JOIN(CAT(vload, VL)(0, row), CAT(vload, VL)(0, row + channel_size));
            }
            TRANSPOSE(a, b, TILE_STEPS)
#pragma unroll
            for (int i = 0; i < TILE_STEPS; i++) STORE_OPERANDS(to + (lower + i) * TILE_STEPS, a[i]);
        }
    }
    // all taps of a kernel: they lie together, and are put together to lines of steps
    const bool reverse = taps > 1 && tap_met(0, met);
    bool all = taps > 1 && taps <= VL;
    for (int i = 0; all && i < taps; i++) all = tap_met(i, met) == (reverse ? taps - 1 - i : i);
    for (int i = 0; all && i < AMX_ROWS; i++) {
        operand lines[(VL + 1) * VL];  // of so many channels as there are steps in a line
        global operand *to = out + PLACE((long)first * taps) + i * TILE_STEPS;
        const long row = group * group_size + (m + min(i, rows - 1)) * m_size;
        for (int from = first; from < last; from += TILE_STEPS) {
            const int count = min(last - from, TILE_STEPS) * taps;
            long at = row + from * NUMBERS * channel_size;
            for (int k = 0; k < count; k += taps, at += NUMBERS * channel_size) {
                STORE_OPERANDS(
                    lines + k, taps_of(OPEN(w), at, channel_size, taps, reverse, get_global_size(2) * group_size));
            }
            for (int k = count; k < WHOLE_BLOCKS(count); k++) lines[k] = 0;
            for (int k = 0; k < count; k += TILE_STEPS, to += BLOCK_OPERANDS)
                STORE_OPERANDS(to, LOAD_OPERANDS(lines + k));
        }
    }
    if (all) return;
#endif
    for (int i = 0; i < AMX_ROWS; i++) {
        global const stored *wr = ws + min(i, rows - 1) * m_size;
        long step = (long)channel * taps;
        for (int c = channel; c < last; c++) {
            global const stored *wc = wr + c * NUMBERS * channel_size;
            for (int j = 0; j < taps; j++, step++) {
                const int tap = tap_met(j, met);
                out[PLACE(step) + i * TILE_STEPS] = wc[tap] | (uint)wc[tap + channel_size] << 16;
            }
        }
        for (; last == channels && step < depth; step++) out[PLACE(step) + i * TILE_STEPS] = 0;
    }
}
