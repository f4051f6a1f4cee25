// Boxes and their overlap.
//
// CENTER  0: a box is two opposite corners (y, x, y, x); 1: (x, y) of its middle, width, height

#ifndef CENTER
#define CENTER 0
#endif

typedef struct {
    real low_y, low_x, high_y, high_x;
} box;

box box_at(global const stored *boxes, const ulong at) {
    const real a = LOAD(boxes, 4 * at), b = LOAD(boxes, 4 * at + 1), c = LOAD(boxes, 4 * at + 2),
               d = LOAD(boxes, 4 * at + 3);
    box found;
#if CENTER
    found.low_y = b - d / 2;
    found.low_x = a - c / 2;
    found.high_y = b + d / 2;
    found.high_x = a + c / 2;
#else
    found.low_y = fmin(a, c);
    found.low_x = fmin(b, d);
    found.high_y = fmax(a, c);
    found.high_x = fmax(b, d);
#endif
    return found;
}

real area(const box a) { return (a.high_y - a.low_y) * (a.high_x - a.low_x); }

// Whether the intersection over union of two boxes is larger than allowed.
int overlap_more(const box a, const box b, const real most) {
    const real height = fmin(a.high_y, b.high_y) - fmax(a.low_y, b.low_y);
    const real width = fmin(a.high_x, b.high_x) - fmax(a.low_x, b.low_x);
    const real common = fmax(height, (real)0) * fmax(width, (real)0), all = area(a) + area(b) - common;
    return all > 0 && common / all > most;
}
