// What the work-items of a product of matrices share by tickets: blocks of pixels, of row tiles, and groups.
#include "common/tickets.cl"

typedef struct {
    long first;           // pixel
    int count, group;     // count: of pixels
    int m_first, m_last;  // row tiles
} Block;

// How `all` pixels and the row tiles of each group are cut.
typedef struct {
    long all;
    int pixels, rows, m_tiles;  // pixels and rows: of a block, in pixels and in row tiles
    int across, down;           // blocks of pixels and of row tiles
} Blocks;

Blocks blocks_of(const long all, const int block_tiles, const int m_tiles, const int block_rows) {
    const int pixels = block_tiles * COLS;
    return (Blocks){
        all, pixels, block_rows, m_tiles, (int)((all + pixels - 1) / pixels), (m_tiles + block_rows - 1) / block_rows};
}

// Pixels are innermost, groups outermost.
Block block_of(const Blocks *blocks, const int item) {
    const long first = item % blocks->across * (long)blocks->pixels;
    const int m_first = item / blocks->across % blocks->down * blocks->rows;
    return (Block){first, (int)min(blocks->all - first, (long)blocks->pixels), item / blocks->across / blocks->down,
                   m_first, min(m_first + blocks->rows, blocks->m_tiles)};
}
