// The sums that a convolution leaves of its tiles of rows: three numbers for each channel, the shift, the sums of the
// differences from it and of their squares; after those of all tiles, how many rows each tile has.
#define TILE_SUMS(sums, tile, n, channels) ((sums) + ((long)(tile) * 3 + (n)) * (channels))
#define TILE_ROWS(sums, tiles, channels) TILE_SUMS(sums, tiles, 0, channels)
