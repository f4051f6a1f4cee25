// A hint to load memory early, where a compiler knows the builtin. NO_PREFETCH is for checkers that do not.
// PREFETCH_FAR loads into the L2 cache alone, which is faster for most of what streams from memory.

#if defined(__has_builtin) && !defined(NO_PREFETCH)
#if __has_builtin(__builtin_prefetch)
#define PREFETCH(p) __builtin_prefetch((const void *)(size_t)(p))
#define PREFETCH_FAR(p) __builtin_prefetch((const void *)(size_t)(p), 0, 2)
#define PREFETCH_TO_WRITE(p) __builtin_prefetch((const void *)(size_t)(p), 1)
#endif
#endif
#ifndef PREFETCH
#define PREFETCH(p)
#define PREFETCH_FAR(p)
#define PREFETCH_TO_WRITE(p)
#endif
#define CACHE_LINE 64
