// The windows of a pooling, by value. The struct's fields are the table in core/operators/pooling/arguments.py, one int
// per axis, axis by axis: window o of `result` has `taps` taps from source position o * stride - pad on, and the padded
// source ends at `end`. An average divides by the taps inside of that if count_padding is 1, else by
// those inside of the source.
#ifdef WINDOWS_FIELDS
typedef struct {
    WINDOWS_FIELDS
} Windows;
#endif

// Short names of what kernels read: sizes of the source and of the result, taps, strides, paddings, ends.
#define WINDOW_DEPTHS                                                                                   \
    const int id = windows.source_d, od = windows.result_d, kd = windows.taps_d, sd = windows.stride_d; \
    const int pd = windows.pad_d, ed = windows.end_d;
#define WINDOW_PLANES                                                                                     \
    const int ih = windows.source_h, iw = windows.source_w, oh = windows.result_h, ow = windows.result_w; \
    const int kh = windows.taps_h, kw = windows.taps_w, sh = windows.stride_h, sw = windows.stride_w;     \
    const int ph = windows.pad_h, pw = windows.pad_w, eh = windows.end_h, ew = windows.end_w;             \
    const int count_padding = windows.count_padding;
