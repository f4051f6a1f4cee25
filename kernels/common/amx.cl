// Products of tiles of bfloat16 by AMX, a matrix unit of x86 processors:
//
//     sums[row][lane]  +=  sum over steps k of a[row][k] * b[k][lane]        row < 32, lane < 32
//
// a, b    operands of two numbers (common/operands.cl), in whole blocks of 16 steps. A row of a lies in a block as it
//         is, rows are a_pitch operands apart, blocks a_next; b is local, a step is 32 operands
// sums    floats, 32 in a row
//
// An instruction multiplies 16 rows with 16 lanes for 16 steps. Sums of first and of second numbers are added up apart,
// each product by a multiply-add, then both are added, and that to what was there (as TDPBF16PS does). Whatever
// is smaller than the smallest normal number counts as zero.
//
// AMX               1: the same roundings without the unit, 2: by assembly. Compilers for these processors may be told
//                   of older ones, so instructions are written as bytes
// AMX_SUMS, AMX_A   the memory that sums and a are in
//
// set_tiles() comes before the first product of a work-item, release_tiles() behind its last one. multiply_tiles() is
// begin_tiles(), add_tiles() for all steps, and end_tiles(). Products of steps that do not follow each other call
// these: sums are loaded from memory or zeros, and stored elsewhere or there.

#include "common/operands.cl"
#include "common/transpose.cl"

#if AMX
#define TILE_STEPS 16
#define AMX_ROWS 32
#define AMX_LANES 32
#define BLOCK_OPERANDS (AMX_ROWS * TILE_STEPS)
#define PLACE(step) ((step) / TILE_STEPS * BLOCK_OPERANDS + (step) % TILE_STEPS)  // of a step in packed rows
#define WHOLE_BLOCKS(steps) (((steps) + TILE_STEPS - 1) / TILE_STEPS * TILE_STEPS)
#ifndef AMX_SUMS
#define AMX_SUMS local
#define AMX_A global
#endif

#if AMX == 1
#define set_tiles()
#define release_tiles()

void begin_tiles(AMX_SUMS real *sums, AMX_SUMS const real *from, const bool add) {
    for (int at = 0; at < AMX_ROWS * AMX_LANES; at += VL)
        STORE_REALS(sums + at, add ? LOAD_REALS(from + at) : (realv)(0));
}

void add_tiles(AMX_SUMS real *sums, AMX_A const operand *a, const int a_pitch, const int a_next, local const operand *b,
               const int blocks) {
    for (int at = 0; at < AMX_ROWS * AMX_LANES; at += VL) {
        const int row = at / AMX_LANES, lane = at % AMX_LANES;
        realv all = LOAD_REALS(sums + at);
        for (int block = 0; block < blocks; block++) {
            realv first = 0, second = 0;
            for (int k = 0; k < TILE_STEPS; k++) {
                const operandv one = a[(long)block * a_next + row * a_pitch + k],
                               other = LOAD_OPERANDS(b + (block * TILE_STEPS + k) * AMX_LANES + lane);
                first = fma(without_denormals(one << 16), without_denormals(other << 16), first);
                first = without_denormals(AS_OPERANDS(first));
                second = fma(without_denormals(one & 0xffff0000u), without_denormals(other & 0xffff0000u), second);
                second = without_denormals(AS_OPERANDS(second));
            }
            all = without_denormals(AS_OPERANDS(all + without_denormals(AS_OPERANDS(first + second))));
        }
        STORE_REALS(sums + at, all);
    }
}

#define end_tiles(sums)
#else
// Tiles 0 to 3 hold sums, 4 and 5 rows of a, 6 and 7 lanes of b.
void set_tiles(void) {
    uchar words[64] = {1};  // the palette; then bytes of a row of each tile, and rows
    for (int tile = 0; tile < 8; tile++) {
        words[16 + 2 * tile] = 64;
        words[48 + tile] = 16;
    }
    // ldtilecfg (%rax)
    __asm__ volatile(".byte 0xc4,0xe2,0x78,0x49,0x00" : : "a"(words) : "memory");
}

void release_tiles(void) { __asm__ volatile(".byte 0xc4,0xe2,0x78,0x49,0xc0"); }

#define ROW_BYTES (AMX_LANES * sizeof(operand))  // of sums and of b

void begin_tiles(AMX_SUMS real *sums, AMX_SUMS const real *from, const bool add) {
    const long pitch = ROW_BYTES;
    if (add) {
        // tileloadd (%rax,%rcx), %tmm0; 64(%rax,%rcx), %tmm1; 2048(%rax,%rcx), %tmm2; 2112(%rax,%rcx), %tmm3
        __asm__ volatile(
            ".byte 0xc4,0xe2,0x7b,0x4b,0x04,0x08,0xc4,0xe2,0x7b,0x4b,0x4c,0x08,0x40,"
            "0xc4,0xe2,0x7b,0x4b,0x94,0x08,0x00,0x08,0x00,0x00,0xc4,0xe2,0x7b,0x4b,0x9c,0x08,0x40,0x08,0x00,0x00"
            :
            : "a"(from), "c"(pitch)
            : "memory");
    } else {
        // tilezero %tmm0; %tmm1; %tmm2; %tmm3
        __asm__ volatile(
            ".byte 0xc4,0xe2,0x7b,0x49,0xc0,0xc4,0xe2,0x7b,0x49,0xc8,"
            "0xc4,0xe2,0x7b,0x49,0xd0,0xc4,0xe2,0x7b,0x49,0xd8");
    }
}

void add_tiles(AMX_SUMS real *sums, AMX_A const operand *a, const int a_pitch, const int a_next, local const operand *b,
               const int blocks) {
    const long pitch = ROW_BYTES, row_bytes = a_pitch * (long)sizeof(operand);
    for (int block = 0; block < blocks; block++) {
        // tileloadd (%rax,%rsi), %tmm4; tileloadd (%rdx,%rcx), %tmm6; tdpbf16ps %tmm6, %tmm4, %tmm0;
        // tileloadd 64(%rdx,%rcx), %tmm7; tdpbf16ps %tmm7, %tmm4, %tmm1;
        // tileloadd (%rbx,%rsi), %tmm5; tdpbf16ps %tmm6, %tmm5, %tmm2; tdpbf16ps %tmm7, %tmm5, %tmm3
        __asm__ volatile(
            ".byte 0xc4,0xe2,0x7b,0x4b,0x24,0x30,0xc4,0xe2,0x7b,0x4b,0x34,0x0a,0xc4,0xe2,0x4a,0x5c,0xc4,"
            "0xc4,0xe2,0x7b,0x4b,0x7c,0x0a,0x40,0xc4,0xe2,0x42,0x5c,0xcc,"
            "0xc4,0xe2,0x7b,0x4b,0x2c,0x33,0xc4,0xe2,0x4a,0x5c,0xd5,0xc4,0xe2,0x42,0x5c,0xdd"
            :
            : "a"(a), "b"(a + 16 * a_pitch), "d"(b), "c"(pitch), "S"(row_bytes)
            : "memory");
        a += a_next;
        b += TILE_STEPS * AMX_LANES;
    }
}

void end_tiles(AMX_SUMS real *sums) {
    const long pitch = ROW_BYTES;
    // tilestored to where sums are loaded from
    __asm__ volatile(
        ".byte 0xc4,0xe2,0x7a,0x4b,0x04,0x08,0xc4,0xe2,0x7a,0x4b,0x4c,0x08,0x40,"
        "0xc4,0xe2,0x7a,0x4b,0x94,0x08,0x00,0x08,0x00,0x00,0xc4,0xe2,0x7a,0x4b,0x9c,0x08,0x40,0x08,0x00,0x00"
        :
        : "a"(sums), "c"(pitch)
        : "memory");
}
#endif

void multiply_tiles(AMX_SUMS real *sums, const bool add, AMX_A const operand *a, const int a_pitch, const int a_next,
                    local const operand *b, const int blocks) {
    begin_tiles(sums, sums, add);
    add_tiles(sums, a, a_pitch, a_next, b, blocks);
    end_tiles(sums);
}
#endif
