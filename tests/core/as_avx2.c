/* Preloaded, it makes LLVM, and so PoCL, take this processor for one with AVX2 and without AVX-512.
 *
 * PoCL has no option for its target. It asks two functions of LLVM about the processor; this library answers in their
 * place. Intel's runtime has CL_CONFIG_CPU_TARGET_ARCH for that. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define FEATURES _ZN4llvm3sys18getHostCPUFeaturesERNS_9StringMapIbNS_15MallocAllocatorEEE
#define QUOTED(word) #word
#define TEXT(word) QUOTED(word)

/* llvm::StringRef, llvm::StringMapEntry<bool>, llvm::StringMapImpl */
struct text {
    const char *characters;
    size_t length;
};
struct entry {
    size_t length;
    union {
        bool value;
        uint64_t padded;
    };
    char key[];
};
struct map {
    struct entry **table;
    unsigned buckets, items, tombstones, item_size;
};

static int find_llvm(struct dl_phdr_info *library, size_t size, void *found) {
    (void)size;
    if (!strstr(library->dlpi_name, "libLLVM")) return 0;
    *(void **)found = dlopen(library->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    return 1;
}

struct text _ZN4llvm3sys14getHostCPUNameEv(void) { return (struct text){"haswell", 7}; }

bool FEATURES(struct map *features) {
    void *llvm = NULL;
    dl_iterate_phdr(find_llvm, &llvm);
    bool (*real)(struct map *) = llvm ? (bool (*)(struct map *))dlsym(llvm, TEXT(FEATURES)) : NULL;
    if (!real || !real(features)) return false;
    for (unsigned i = 0; i < features->buckets; i++) {
        struct entry *feature = features->table[i];
        bool used = feature && (intptr_t)feature > 0; /* a removed entry's mark is a negative number */
        if (used && !strncmp(feature->key, "avx512", 6)) feature->value = false;
    }
    return true;
}
