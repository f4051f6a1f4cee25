// The weights of products by AMX, packed as common/amx.cl reads them: tiles of 32 rows, in blocks of 16 steps.

#include "common/amx.cl"
#include "conv/grid.cl"

#define BLOCK_OPERANDS (AMX_ROWS * TILE_STEPS)
#define PLACE(step) ((step) / TILE_STEPS * BLOCK_OPERANDS + (step) % TILE_STEPS)

// packed[group][tile][step / 16][row][step % 16] = w at (row, channel, tap), the steps being pairs of channels, and of
// each its taps; `met` says which taps of the kernel they are. Rows beyond m_count repeat the last one; their products
// are not stored. Steps beyond the last one are zeros. One work-item packs `range` pairs of channels of one tile. Strides of w, in elements: m_size from row
// to row, channel_size from channel to channel.
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
#endif
    for (int i = 0; i < AMX_ROWS; i++) {
        global const stored *wr = ws + min(i, rows - 1) * m_size;
        long step = (long)channel * taps;
        for (int c = channel; c < last; c++) {
            global const stored *wc = wr + c * NUMBERS * channel_size;
            for (int d = 0; d < met.taps_d; d++) {
                for (int h = 0; h < met.taps_h; h++) {
                    const int row = (met.first_d + d * met.step_d) * met.kernel_h + met.first_h + h * met.step_h;
                    for (int l = 0; l < met.taps_w; l++, step++) {
                        const int tap = row * met.kernel_w + met.first_w + l * met.step_w;
                        out[PLACE(step) + i * TILE_STEPS] = wc[tap] | (uint)wc[tap + channel_size] << 16;
                    }
                }
            }
        }
        for (; last == channels && step < depth; step++) out[PLACE(step) + i * TILE_STEPS] = 0;
    }
}
