// The weights of the products of matrices on CPU devices, packed in tiles of MR rows: what one step of a product reads
// lies together. Where operands are pairs, `channels` counts pairs of them.

#include "common/register_tile.cl"
#include "conv/grid.cl"

#define MAX_TURNED 64  // taps whose weights are transposed at once; a multiple of VL
#define LACED (MR > 8 ? 16 : MR > 4 ? 8 : MR > 2 ? 4 : MR)  // rows that are transposed, of which the first MR are kept
#define NEIGHBOURS 8  // tiles that pack_rows packs at once: their rows are neighbours in memory

// A row of the tile; there are no vectors of 6, or of more than 16.
#if MR & (MR - 1) || MR > 16
#define COPY_ROWS(to, from) \
    for (int i_ = 0; i_ < MR; i_++) (to)[i_] = (from)[i_];
#else
#define COPY_ROWS(to, from) CAT(vstore, MR)(CAT(vload, MR)(0, from), 0, to);
#endif

// An operand of a channel, or of a pair, and the operands of its taps; `channel_size` numbers lie between both.
#if PAIRED
#define WEIGHT_AT(p, channel_size) ((p)[0] | (uint)(p)[channel_size] << 16)
#define WEIGHTS_AT(p, channel_size) JOIN(CAT(vload, VL)(0, p), CAT(vload, VL)(0, (p) + (channel_size)))
#else
#define WEIGHT_AT(p, channel_size) LOAD(p, 0)
#define WEIGHTS_AT(p, channel_size) VLOAD(p, 0)
#endif

#define TAPS_OF(met) ((met).taps_d * (met).taps_h * (met).taps_w)

// turned[tap][row of the tile] = the taps of a channel, where as many are kept and `left` elements may be read from wc
// on; returns whether.
bool turn_taps(operand *turned, global const stored *wc, const long left, const int rows, const long m_size,
               const long channel_size, const int all_taps) {
#if MR & (MR - 1) || MR > 16
    return false;
#else
    const long beyond = (NUMBERS - 1) * channel_size + all_taps + VL;
    const bool turn = all_taps <= MAX_TURNED && (rows - 1) * m_size + beyond <= left;
    for (int tap = 0; turn && tap < all_taps; tap += VL) {
        operandv a[MR], b[MR];
#pragma unroll
        for (int i = 0; i < MR; i++) a[i] = WEIGHTS_AT(wc + min(i, rows - 1) * m_size + tap, channel_size);
        TRANSPOSE(a, b, MR)
#pragma unroll
        for (int i = 0; i < MR; i++) STORE_OPERANDS(turned + tap * MR + i * VL, a[i]);
    }
    return turn;
#endif
}

// to[row of the tile] = a tap of a channel, from `turned` if that holds it.
void put_tap(global operand *to, const operand *turned, const bool turn, global const stored *wc, const int rows,
             const long m_size, const long channel_size, const int tap) {
    if (turn) {
        COPY_ROWS(to, turned + tap * MR)
    } else {
        for (int i = 0; i < MR; i++) to[i] = WEIGHT_AT(wc + min(i, rows - 1) * m_size + tap, channel_size);
    }
}

// packed[group][tile][channel, tap][row of the tile] = w at (row, channel, tap). `met` says which taps of the kernel
// they are. Rows beyond m_count repeat the last one; their products are not stored. One work-item packs `range`
// channels of one tile. Strides of w, in elements: m_size from row to row, channel_size from channel to channel.
kernel void pack_weights(CONST_TENSOR(w), TENSOR_OF(operand, packed), const int channels, const int m_count,
                         const long m_size, const long channel_size, const long group_size, const int range,
                         const Taps met) {
    const int m_tile = get_global_id(1), group = get_global_id(2), m_tiles = get_global_size(1),
              groups = get_global_size(2);
    const int first = get_global_id(0) * range, last = min(first + range, channels);
    const int m = m_tile * MR, rows = min(m_count - m, MR), kd = met.kernel_d, kh = met.kernel_h, kw = met.kernel_w;
    const int taps = TAPS_OF(met), all_taps = kd * kh * kw;
    const long from = group * group_size + m * m_size;
    const long left = groups * (long)m_count * channels * NUMBERS * all_taps - from;
    global const stored *ws = OPEN(w) + from;
    global operand *out = OPEN(packed) + ((long)group * m_tiles + m_tile) * channels * taps * MR;
    // all taps in their order, channels next to each other: one long matrix
    const bool plain = (NUMBERS == 1 || taps == 1) && channel_size == all_taps && taps == all_taps &&
                       (met.step_w > 0 || kw == 1) && (met.step_h > 0 || kh == 1) && (met.step_d > 0 || kd == 1);
    if (plain) {
        int k = first * taps;
        for (; k < last * taps && (rows - 1) * m_size + (k + VL) * NUMBERS <= left; k += VL) {
            operandv a[LACED], b[LACED];
#pragma unroll
            for (int i = 0; i < LACED; i++) a[i] = OPERANDS_AT(ws + min(i, rows - 1) * m_size, k);
            TRANSPOSE(a, b, LACED)
#if MR & (MR - 1) || MR > 16
            operand steps[VL * LACED];
#pragma unroll
            for (int i = 0; i < LACED; i++) STORE_OPERANDS(steps + i * VL, a[i]);
            for (int i = 0; i < VL && k + i < last * taps; i++) COPY_ROWS(out + (k + i) * MR, steps + i * LACED)
#else
#pragma unroll
            for (int i = 0; i < MR; i++) {
                if (k + (i + 1) * (VL / MR) <= last * taps) STORE_OPERANDS(out + k * MR + i * VL, a[i]);
            }
#endif
            if (k + VL > last * taps) break;
        }
        for (k = max(first * taps, last * taps - VL); k < last * taps; k++) {
            for (int i = 0; i < MR; i++) out[k * MR + i] = OPERAND_AT(ws + min(i, rows - 1) * m_size, k);
        }
        return;
    }
    for (int channel = first; channel < last; channel++) {
        const long at = channel * NUMBERS * channel_size;
        global const stored *wc = ws + at;
        operand turned[MAX_TURNED * MR];
        const bool turn = turn_taps(turned, wc, left - at, rows, m_size, channel_size, all_taps);
        global operand *to = out + (long)channel * taps * MR;
        for (int d = 0; d < met.taps_d; d++) {
            for (int h = 0; h < met.taps_h; h++) {
                for (int l = 0; l < met.taps_w; l++) {
                    const int row = (met.first_d + d * met.step_d) * kh + met.first_h + h * met.step_h;
                    put_tap(to, turned, turn, wc, rows, m_size, channel_size, row * kw + met.first_w + l * met.step_w);
                    to += MR;
                }
            }
        }
    }
}

// packed[group][tile][channel][row of the tile] = w[group][channel][row]: kernels of one pixel, backward data. Rows
// beyond m_count repeat the last one. One work-item packs `range` channels of NEIGHBOURS tiles, as rows of w are far
// apart.
kernel void pack_rows(CONST_TENSOR(w), TENSOR_OF(operand, packed), const int channels, const int m_count,
                      const int range) {
    const int group = get_global_id(2), m_tiles = (m_count + MR - 1) / MR;
    const int first = get_global_id(0) * range, last = min(first + range, channels);
    const int first_tile = get_global_id(1) * NEIGHBOURS, last_tile = min(first_tile + NEIGHBOURS, m_tiles);
    for (int channel = first; channel < last; channel++) {
        global const stored *row = OPEN(w) + ((long)group * channels + channel) * NUMBERS * m_count;
        global operand *to = OPEN(packed) + (((long)group * m_tiles + first_tile) * channels + channel) * MR;
        for (int m = first_tile * MR; m < last_tile * MR; m += MR) {
#if PAIRED && !(MR & (MR - 1))
            if (m + MR <= m_count) {
                const CAT(uint, MR) low = CAT(convert_uint, MR)(CAT(vload, MR)(0, row + m));
                const CAT(uint, MR) high = CAT(convert_uint, MR)(CAT(vload, MR)(0, row + m_count + m));
                CAT(vstore, MR)(low | high << 16, 0, to);
                to += (long)channels * MR;
                continue;
            }
#endif
            for (int i = 0; i < MR; i++) to[i] = WEIGHT_AT(row + min(m + i, m_count - 1), m_count);
            to += (long)channels * MR;
        }
    }
}
