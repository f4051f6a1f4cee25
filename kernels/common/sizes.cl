// The sizes of source and result, images of up to three axes, by value. The struct's fields are the table in
// core/planning/sizes.py, one int per axis; axes that are not there have the size 1.
#ifdef SIZES_FIELDS
typedef struct {
    SIZES_FIELDS
} Sizes;
#endif

// Short names of what kernels read.
#define IMAGE_DEPTHS const int id = sizes.source_d, od = sizes.result_d;
#define IMAGE_PLANES const int ih = sizes.source_h, iw = sizes.source_w, oh = sizes.result_h, ow = sizes.result_w;
