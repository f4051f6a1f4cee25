// Groups of few channels as groups of `merged` times as many, in channels last: their weights are blocks on a diagonal.
//
// w (outputs of all groups, taps, inputs of a group); wide (outputs of all groups, taps, merged * inputs of a group),
// of which a group has `outputs`. A work-item has an element.

// The first of a group's inputs among those of `merged` groups.
#define FIRST_INPUT(output) ((output) / outputs % merged * inputs)

// w with zeros as the weights of other groups' inputs. Global: the elements of `wide`.
kernel void conv_merge_groups(CONST_TENSOR(w), TENSOR(wide), const int taps, const int inputs, const int outputs,
                              const int merged) {
    const long id = get_global_id(0), row = id / (merged * inputs);
    const int input = id % (merged * inputs) - FIRST_INPUT(row / taps);
    global const ushort *const from = (global const ushort *)OPEN(w) + row * inputs;
    ((global ushort *)OPEN(wide))[id] = input >= 0 && input < inputs ? from[input] : 0;
}

// The gradient of w from that of `wide`. Global: the elements of w.
kernel void conv_split_groups(CONST_TENSOR(wide), TENSOR(w), const int accumulate, const int taps, const int inputs,
                              const int outputs, const int merged) {
    const long id = get_global_id(0), row = id / inputs;
    const long from = row * (merged * inputs) + FIRST_INPUT(row / taps) + id % inputs;
    const real value = LOAD(OPEN(wide), from);
    STORE(OPEN(w), id, accumulate ? LOAD(OPEN(w), id) + value : value);
}
