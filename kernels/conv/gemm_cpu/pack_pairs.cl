// Weights of the products of matrices on CPU devices as pairs of channels (common/operands.cl), in tiles of MR rows:
// what one step of a product reads lies together. MR is a power of two.

#include "common/register_tile.cl"
#include "conv/grid.cl"

#define MOST_TAPS 64  // whose weights are transposed at once; a multiple of VL

// The taps of a pair of channels, and the place of a tap in the kernel.
#define TAP_PAIR(p, channel_size) ((p)[0] | (uint)(p)[channel_size] << 16)
#define TAP_AT(d, h, l)                                                                                    \
    ((((met.first_d + (d) * met.step_d) * met.kernel_h + met.first_h + (h) * met.step_h) * met.kernel_w) + \
     met.first_w + (l) * met.step_w)

// packed[group][tile][pair, tap][row of the tile] = w at (row, both channels, tap). `met` says which taps of the kernel
// they are. Rows beyond m_count repeat the last one; their products are not stored. One work-item packs `range` pairs
// of one tile. Strides of w, in elements: m_size from row to row, channel_size from channel to channel.
kernel void pack_pairs(CONST_TENSOR(w), TENSOR_OF(operand, packed), const int pairs, const int m_count,
                       const long m_size, const long channel_size, const long group_size, const int range,
                       const Taps met) {
    const int m_tile = get_global_id(1), group = get_global_id(2), m_tiles = get_global_size(1),
              groups = get_global_size(2);
    const int first = get_global_id(0) * range, last = min(first + range, pairs);
    const int m = m_tile * MR, rows = min(m_count - m, MR);
    const int taps = met.taps_d * met.taps_h * met.taps_w, all_taps = met.kernel_d * met.kernel_h * met.kernel_w;
    const long from = group * group_size + m * m_size;
    const long left = groups * (long)m_count * pairs * 2 * all_taps - from;
    global const stored *ws = OPEN(w) + from;
    global operand *out = OPEN(packed) + ((long)group * m_tiles + m_tile) * pairs * taps * MR;
    int pair = first;
    // both channels of a row next to each other: a matrix of pairs
    for (; channel_size == 1 && pair + VL <= last && (rows - 1) * m_size + 2 * (pair + VL) <= left; pair += VL) {
        operandv a[MR], b[MR];
#pragma unroll
        for (int i = 0; i < MR; i++) a[i] = OPERANDS_AT(ws + min(i, rows - 1) * m_size, pair);
        TRANSPOSE(a, b, MR)
#pragma unroll
        for (int i = 0; i < MR; i++) STORE_OPERANDS(out + (long)pair * MR + i * VL, a[i]);
    }
    for (; pair < last; pair++) {
        global const stored *wp = ws + 2 * pair * channel_size;
        global operand *to = out + (long)pair * taps * MR;
        if (m_size == 1 && rows == MR && taps == 1) {  // rows next to each other
            const CAT(uint, MR) low = CAT(convert_uint, MR)(CAT(vload, MR)(0, wp));
            const CAT(uint, MR) high = CAT(convert_uint, MR)(CAT(vload, MR)(0, wp + channel_size));
            CAT(vstore, MR)(low | high << 16, 0, to);
            continue;
        }
        operand turned[MOST_TAPS * MR];  // [tap][row of the tile]
        const bool turn = all_taps > 1 && all_taps <= MOST_TAPS &&
                          2 * pair * channel_size + channel_size + (rows - 1) * m_size + all_taps + VL <= left;
        for (int tap = 0; turn && tap < all_taps; tap += VL) {
            operandv a[MR], b[MR];
#pragma unroll
            for (int i = 0; i < MR; i++) {
                global const stored *row = wp + min(i, rows - 1) * m_size + tap;
                a[i] = JOIN(CAT(vload, VL)(0, row), CAT(vload, VL)(0, row + channel_size));
            }
            TRANSPOSE(a, b, MR)
#pragma unroll
            for (int i = 0; i < MR; i++) STORE_OPERANDS(turned + tap * MR + i * VL, a[i]);
        }
        for (int d = 0; d < met.taps_d; d++) {
            for (int h = 0; h < met.taps_h; h++) {
                for (int l = 0; l < met.taps_w; l++) {
                    const int tap = TAP_AT(d, h, l);
                    if (turn) {
                        CAT(vstore, MR)(CAT(vload, MR)(0, turned + tap * MR), 0, to);
                    } else {
                        for (int i = 0; i < MR; i++)
                            to[i] = TAP_PAIR(wp + min(i, rows - 1) * m_size + tap, channel_size);
                    }
                    to += MR;
                }
            }
        }
    }
}
