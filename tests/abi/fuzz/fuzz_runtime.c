/* libFuzzer's entry: one input is a sequence of calls by one thread. */
#include "calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    calls_begin();
    calls_play(&in);
    calls_end();
    return 0;
}
