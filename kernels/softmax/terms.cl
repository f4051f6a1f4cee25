// What all kernels of softmax compute for an element. LOG 1: the logarithm of the softmax.

#ifndef LOG
#define LOG 0
#endif

// Of a gradient: a term of the sum over the channels, and the result.
#if LOG
#define TERM(y, dy) (dy)
#define GRADIENT(y, dy, total) ((dy) - exp(y) * (total))
#else
#define TERM(y, dy) ((y) * (dy))
#define GRADIENT(y, dy, total) ((y) * ((dy) - (total)))
#endif

#define GREATER(a, b) ((b) > (a) ? (b) : (a))
