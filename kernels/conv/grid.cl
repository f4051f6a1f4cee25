// Structs by value that describe a product of matrices over a source tensor. Their fields are the tables in
// core/operators/conv/arguments.py, from which the planner makes the macros here and packs the arguments. Each has one
// int per axis: size_d, size_h and size_w are the field `size` of depth, height and width.

// A grid of `size` pixels over a tensor of `source`: pixel u meets tap j at u * stride + begin + j * step, on each
// axis.
#ifdef GRID_FIELDS
typedef struct {
    GRID_FIELDS
} Grid;
#endif

// Pixel u of a grid of `pixels` is stored at position u * stride + begin of a tensor of `size`, on each axis.
#ifdef TARGET_FIELDS
typedef struct {
    TARGET_FIELDS
} Target;
#endif

// What `quotient` divides by (common/divide.cl) for the `size` of a grid, on each axis.
#ifdef DIVISORS_FIELDS
typedef struct {
    DIVISORS_FIELDS
} Divisors;
#endif

// Of a phase of a stride: its taps, which are those of the kernel from `first` down, where pixel 0 meets the first of
// them, and where it is stored.
#ifdef STRIDE_PHASE_FIELDS
typedef struct {
    STRIDE_PHASE_FIELDS
} StridePhase;
#endif

// Tap j of `taps` is tap first + j * step of a kernel of `kernel` taps, on each axis.
#ifdef TAPS_FIELDS
typedef struct {
    TAPS_FIELDS
} Taps;
#endif

// Blocks of `block` pixels of dx, of which pixel a meets tap i of `taps` of dy's grid, that begins at `first`, with the
// kernel's tap (a + pad - stride * (first + i)) / dilate, if it is one.
#ifdef BLOCK_TAPS_FIELDS
typedef struct {
    BLOCK_TAPS_FIELDS
} BlockTaps;
#endif

// Where a product of matrices reads weights: distances of groups, of tiles of rows, of a tile's rows, and of steps.
#ifdef WEIGHT_STRIDES_FIELDS
typedef struct {
    WEIGHT_STRIDES_FIELDS
} WeightStrides;
#endif

// The phases of a stride over a tensor of `size`: a phase meets every `distance`-th tap of the kernel, at offsets that
// are `tap_step` taps of a grid apart.
#ifdef PHASE_TAPS_FIELDS
typedef struct {
    PHASE_TAPS_FIELDS
} PhaseTaps;
#endif

// All phases of a strided backward data; see conv/gemm_gpu/loaders/phases.cl.
#ifdef PHASE_GRID_FIELDS
typedef struct {
    PHASE_GRID_FIELDS
} PhaseGrid;
#endif
