// Which element of y (regions, channels, oh, ow) a work-item computes, of `count` elements, and of which region of
// interest: rois (regions, 4), image (regions), the numbers of their images. A kernel names its parameters so.
#include "common/sizes.cl"

// Sets px, py and channel, `roi` with the region's four numbers, and `number`, its image.
#define FIND_REGION_PIXEL                                                               \
    IMAGE_PLANES                                                                        \
    const ulong item = get_global_id(0);                                                \
    if (item >= count) return;                                                          \
    const int px = item % ow, py = item / ow % oh, channel = item / ow / oh % channels; \
    const ulong region = item / ow / oh / channels;                                     \
    global const stored *roi = OPEN(rois) + 4 * region;                                 \
    const int number = (OPEN(image))[region];
