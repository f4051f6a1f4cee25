// Numbers that planners and kernels share: core/operators/conv/gemm_gpu/constants.py reads this table.

// LOADER: how operands reach local memory.
#define GATHER 1      // loaders/gather.cl: packed weights, and pixels that taps meet
#define PIXELS 2      // loaders/pixels.cl: the depth is pixels
#define BY_ROWS 3     // loaders/matrices.cl: matrices in memory by rows of the depth
#define BY_COLUMNS 4  // loaders/matrices.cl: with the depth inside

// TARGET: where the product belongs.
#define TO_PIXELS 1
#define TO_FILTER 2

// OPERANDS: what a micro kernel multiplies. Sums are float32, with the portable one the type of the arithmetic.
#define FLOAT32 1  // on matrix units by three products of TF32
#define TF32 2     // float32, rounded
#define FLOAT16 3
#define BFLOAT16 4

// OPERATION and MICRO of halves.cl: the direction, and the units.
#define FORWARD 1
#define DATA 2
#define FILTER 3
#define WGMMA_UNITS 1
#define MMA_UNITS 2
#define DPAS8_UNITS 3
#define DPAS16_UNITS 4
#define WMMA_UNITS 5
#define MFMA_UNITS 6
#define DOT2_UNITS 7

#define FMA_PAD 4    // elements after a row of the depth in local memory where columns are written, with micro/fma.cl
#define UNITS_PAD 8  // the same with matrix units: the vectors of a quarter of a warp are in different banks

#define MMA_DEPTH 16     // TILE_K of micro/mma.cl
#define WGMMA_DEPTH 32   // TILE_K of micro/wgmma.cl
#define HALVES_DEPTH 64  // of a step with operands of 16 bits
#define MOST_STAGES 4    // tiles in local memory at the same time, at most, with wgmma.cl
#define SUMMED_STEPS 16  // steps whose products of TF32 the units sum before they are added in float32

#define TAPS_OF_ITEM 5      // taps of a channel that a work-item of pack.cl packs: neighbours in memory
#define ROWS_OF_ITEM 4      // rows that it packs as tiles lie in local memory
#define PHASE_TAPS 64       // most taps of a phase where all phases are one launch (loaders/phases.cl)
#define OUTSIDE 1073741824  // 2**30: a distance outside of every source
