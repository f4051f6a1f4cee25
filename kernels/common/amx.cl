// Products of tiles of bfloat16 by AMX, a matrix unit of x86 processors:
//
//     sums[row][lane]  +=  sum over k < depth of a[row][k] * b[k][lane]        row < 32, lane < 16
//
// a, b    operands of two numbers (common/operands.cl). Those of a lie in blocks of 16 steps, each row a line of a
//         cache, [step / 16][row][step % 16]; of b each step is a line
// sums    local, floats, 16 in a row
//
// An instruction multiplies 16 rows with 16 lanes for 16 steps. Sums of first and of second numbers are added up apart,
// each product by a multiply-add, then both are added, and that to what was there (as TDPBF16PS does). Whatever
// is smaller than the smallest normal number counts as zero.
//
// AMX     1: the same roundings without the unit, 2: by assembly. Compilers for these processors may be told of older
//         ones, so instructions are written as bytes
//
// set_tiles(depth)  comes before products of that depth, release_tiles() behind the last one of a work-item

#include "common/operands.cl"
#include "common/transpose.cl"

#if AMX
#define TILE_STEPS 16
#define AMX_ROWS 32
#define BLOCK_OPERANDS (AMX_ROWS * TILE_STEPS)

#if AMX == 1
#define set_tiles(depth)
#define release_tiles()

void multiply_tiles(local float *sums, const bool add, global const operand *a, local const operand *b,
                    const int depth) {
    for (int row = 0; row < AMX_ROWS; row++) {
        realv all = add ? LOAD_REALS(sums + row * VL) : (realv)(0);
        for (int from = 0; from < depth; from += TILE_STEPS) {
            realv first = 0, second = 0;
            for (int k = from; k < min(from + TILE_STEPS, depth); k++) {
                const operandv one = a[from * AMX_ROWS + row * TILE_STEPS + k - from],
                               other = LOAD_OPERANDS(b + k * VL);
                first = fma(without_denormals(one << 16), without_denormals(other << 16), first);
                first = without_denormals(AS_OPERANDS(first));
                second = fma(without_denormals(one & 0xffff0000u), without_denormals(other & 0xffff0000u), second);
                second = without_denormals(AS_OPERANDS(second));
            }
            all = without_denormals(AS_OPERANDS(all + without_denormals(AS_OPERANDS(first + second))));
        }
        STORE_REALS(sums + row * VL, all);
    }
}
#else
// Tiles 0 and 1 hold sums, 2 and 3 rows of a, 4 steps of b; 5, 7 and 6 the last steps, where those are fewer than 16.
void set_tiles(const int depth) {
    const int rest = depth % TILE_STEPS;
    uchar words[64] = {1};  // the palette; then bytes of a row of each tile, and rows
    for (int tile = 0; tile < 8; tile++) {
        const bool used = tile < 5 || rest;
        words[16 + 2 * tile] = !used ? 0 : tile == 5 || tile == 7 ? rest * 4 : 64;
        words[48 + tile] = !used ? 0 : tile == 6 ? rest : 16;
    }
    // ldtilecfg (%rax)
    __asm__ volatile(".byte 0xc4,0xe2,0x78,0x49,0x00" : : "a"(words) : "memory");
}

void release_tiles(void) { __asm__ volatile(".byte 0xc4,0xe2,0x78,0x49,0xc0"); }

void multiply_tiles(local float *sums, const bool add, global const operand *a, local const operand *b,
                    const int depth) {
    const long pitch = 64;  // bytes
    if (add) {
        // tileloadd (%rax,%rcx), %tmm0; tileloadd 1024(%rax,%rcx), %tmm1
        __asm__ volatile(".byte 0xc4,0xe2,0x7b,0x4b,0x04,0x08,0xc4,0xe2,0x7b,0x4b,0x8c,0x08,0x00,0x04,0x00,0x00"
                         :
                         : "a"(sums), "c"(pitch)
                         : "memory");
    } else {
        // tilezero %tmm0; tilezero %tmm1
        __asm__ volatile(".byte 0xc4,0xe2,0x7b,0x49,0xc0,0xc4,0xe2,0x7b,0x49,0xc8");
    }
    int k = 0;
    for (; k + TILE_STEPS <= depth; k += TILE_STEPS) {
        // tileloadd (%rdx,%rcx), %tmm4; tileloadd (%rax,%rcx), %tmm2; tileloadd 1024(%rax,%rcx), %tmm3;
        // tdpbf16ps %tmm4, %tmm2, %tmm0; tdpbf16ps %tmm4, %tmm3, %tmm1
        __asm__ volatile(
            ".byte 0xc4,0xe2,0x7b,0x4b,0x24,0x0a,0xc4,0xe2,0x7b,0x4b,0x14,0x08,"
            "0xc4,0xe2,0x7b,0x4b,0x9c,0x08,0x00,0x04,0x00,0x00,0xc4,0xe2,0x5a,0x5c,0xc2,0xc4,0xe2,0x5a,0x5c,0xcb"
            :
            : "a"(a), "d"(b), "c"(pitch)
            : "memory");
        a += BLOCK_OPERANDS;
        b += TILE_STEPS * VL;
    }
    if (k < depth) {
        // the same with tiles 6 for 4, 5 for 2 and 7 for 3
        __asm__ volatile(
            ".byte 0xc4,0xe2,0x7b,0x4b,0x34,0x0a,0xc4,0xe2,0x7b,0x4b,0x2c,0x08,"
            "0xc4,0xe2,0x7b,0x4b,0xbc,0x08,0x00,0x04,0x00,0x00,0xc4,0xe2,0x4a,0x5c,0xc5,0xc4,0xe2,0x4a,0x5c,0xcf"
            :
            : "a"(a), "d"(b), "c"(pitch)
            : "memory");
    }
    // tilestored %tmm0, (%rax,%rcx); tilestored %tmm1, 1024(%rax,%rcx)
    __asm__ volatile(".byte 0xc4,0xe2,0x7a,0x4b,0x04,0x08,0xc4,0xe2,0x7a,0x4b,0x8c,0x08,0x00,0x04,0x00,0x00"
                     :
                     : "a"(sums), "c"(pitch)
                     : "memory");
}
#endif
#endif
