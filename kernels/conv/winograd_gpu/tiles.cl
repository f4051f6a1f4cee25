// What the GPUs' transforms share: the tiles of a part, and where an element of a transform lies.
//
// A transform has ELEMENTS matrices for each group, one after the other:
//     V  [element][group][channel][tile]      transformed source
//     U  [element][group][channel][output]    transformed weights
//     M  [element][group][output][tile]       their products
//     Y  [element][group][output][tile]       transformed gradients of the result (backward filter)
// Rows and columns are padded to whole tiles of the product. What pads its depth is zero; what pads rows and columns is
// never looked at.
//
// Kernels with more than TAPS taps along an axis are cut into PIECES pieces along it, the last one filled up with
// zeros. A piece is a convolution of the source moved by the piece's first tap, so that the pieces of a channel are
// channels side by side in V and U, [piece][channel], and the sum over all of them is the products' sum over
// channels.

// Taps of the kernel along an axis.
#ifndef KERNEL_TAPS
#define KERNEL_TAPS TAPS
#endif

#include "conv/grid.cl"

#define TRANSFORMED real
#include "conv/winograd/axes.cl"

#define PIECES ((KERNEL_TAPS + TAPS - 1) / TAPS)
#define ALL_PIECES (PIECES * PIECES)
#define ALL_TAPS (KERNEL_TAPS * KERNEL_TAPS)

#define TILES_H ((grid.size_h + TILE - 1) / TILE)
#define TILES_W ((grid.size_w + TILE - 1) / TILE)

// Tiles [first, first + count) of all images, in matrices with rows of `pitch` tiles; `filled` of these are written,
// zeros from `count` on. The fields are the table in core/operators/conv/arguments.py.
typedef struct {
    TILE_PART_FIELDS
} TilePart;

typedef struct {
    int image, h, w;  // h, w: of its first pixel
} TilePlace;

TilePlace place_of_tile(const int tile, const Grid grid) {
    const int across = TILES_W, rest = tile / across, down = TILES_H;
    const TilePlace place = {rest / down, rest % down * TILE, tile % across * TILE};
    return place;
}
