/* A small net in C: a convolution with a ReLU and a dense layer, trained on random data, then used for inference.
 *
 *     python -m clgraft.core.abi.embed build
 *     cc net.c -Ibuild -Lbuild -Wl,-rpath,$PWD/build -lclgraft -o net && ./net [DEVICE]
 *
 * It compiles as C++ too. The images lie in arrays of the device. Parameters stay in host memory; with a version each,
 * they travel to the device only after they changed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clgraft.h"

enum { PARAMETERS = 4, IMAGES = 16 * 64, TARGETS = 16 * 3, STEPS = 30, MOST_ARGUMENTS = 16 };
static const char *const names[PARAMETERS] = {"w0", "b0", "w1", "b1"};
static const size_t sizes[PARAMETERS] = {36, 4, 768, 3};

/* The net as text: a problem a line, values by name. The loss is the sum of squared differences from the targets. */
static const char *const inference =
    "input x[16,1,8,8] w0[4,1,3,3] b0[4] w1[3,256] b1[3]\n"
    "a = x w0 b0 | conv forward n16 ic1 ih8 iw8 oc4 kh3 kw3 ph1 pw1 b1\n"
    "h = a | pointwise x0[16,4,8,8] : y0 = x0 > 0 ? x0 : 0;\n"
    "y = h w1 b1 | dense forward n16 i256 o3 b1\n"
    "output y\n";
static const char *const training =
    "input x[16,1,8,8] w0[4,1,3,3] b0[4] w1[3,256] b1[3] t[16,3]\n"
    "a = x w0 b0 | conv forward n16 ic1 ih8 iw8 oc4 kh3 kw3 ph1 pw1 b1\n"
    "h = a | pointwise x0[16,4,8,8] : y0 = x0 > 0 ? x0 : 0;\n"
    "y = h w1 b1 | dense forward n16 i256 o3 b1\n"
    "loss = y t | pointwise x0[16,3] x1[16,3] y0=sum : y0 = (x0 - x1) * (x0 - x1);\n"
    "output loss\n";

static void must(clg_status status, const char *what) {
    if (status == CLG_OK) return;
    fprintf(stderr, "%s: status %d: %s\n", what, (int)status, clg_last_error());
    exit(1);
}

static float random_number(void) { return (float)rand() / (float)RAND_MAX - 0.5f; }

/* What a run is given for a name of the graph. */
typedef struct known {
    const char *name;
    clg_buffer buffer;
    clg_copy copy;
} known;

static known on_host(const char *name, float *values, size_t count) {
    known k;
    memset(&k, 0, sizeof k);
    k.name = name;
    k.buffer.size = sizeof k.buffer;
    k.buffer.kind = CLG_HOST;
    k.buffer.dtype = CLG_FLOAT32;
    k.buffer.handle = values;
    k.buffer.bytes = count * sizeof *values;
    return k;
}

static known on_device(clg_context context, const char *name, const float *values, size_t count) {
    known k = on_host(name, NULL, count);
    clg_array array;
    must(clg_array_create(context, k.buffer.bytes, &array), "clg_array_create");
    must(clg_array_write(array, 0, values, k.buffer.bytes), "clg_array_write");
    k.buffer.kind = CLG_ARRAY;
    k.buffer.handle = array;
    return k;
}

/* Starts a plan with what is known for its arguments' names. */
static clg_event start(clg_plan plan, const known *all, uint32_t count) {
    clg_buffer buffers[MOST_ARGUMENTS];
    clg_copy copies[MOST_ARGUMENTS];
    clg_event event;
    uint32_t needed = 0;
    must(clg_plan_counts(plan, &needed, NULL), "clg_plan_counts");
    for (uint32_t i = 0; i < needed; i++) {
        char name[32];
        uint32_t k = 0;
        must(clg_plan_argument_name(plan, i, name, sizeof name), "clg_plan_argument_name");
        while (k < count && strcmp(all[k].name, name)) k++;
        if (k == count) {
            fprintf(stderr, "got an argument %s, expected one of those that are known\n", name);
            exit(1);
        }
        buffers[i] = all[k].buffer;
        copies[i] = all[k].copy;
    }
    must(clg_plan_start(plan, buffers, needed, NULL, 0, copies, &event), "clg_plan_start");
    return event;
}

static void finish(clg_event event) {
    must(clg_event_wait(event), "clg_event_wait");
    must(clg_event_destroy(event), "clg_event_destroy");
}

int main(int argc, char **argv) {
    static float x[IMAGES], t[TARGETS], y[TARGETS], loss, one = 1;
    static float values[PARAMETERS][768], gradients[PARAMETERS][768];
    static const char *const gradient_names[PARAMETERS] = {"d.w0", "d.b0", "d.w1", "d.b1"};
    for (int i = 0; i < IMAGES; i++) x[i] = random_number();
    for (int i = 0; i < TARGETS; i++) t[i] = random_number();
    for (int p = 0; p < PARAMETERS; p++)
        for (size_t i = 0; i < sizes[p]; i++) values[p][i] = 0.3f * random_number();

    clg_context context;
    clg_plan infer, train;
    clg_graph_options options;
    char text[4096];
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.gradients = "w0 b0 w1 b1";
    must(clg_context_create(argc > 1 ? argv[1] : NULL, &context), "clg_context_create");
    must(clg_graph_create(context, inference, NULL, &infer), "clg_graph_create for inference");
    must(clg_graph_create(context, training, &options, &train), "clg_graph_create for training");
    must(clg_plan_describe(train, text, sizeof text), "clg_plan_describe");
    printf("%s\n", text);

    known all[5 + 2 * PARAMETERS];
    uint32_t count = 0;
    all[count++] = on_device(context, "x", x, IMAGES);
    all[count++] = on_device(context, "t", t, TARGETS);
    all[count++] = on_host("y", y, TARGETS);
    all[count++] = on_host("loss", &loss, 1);
    all[count++] = on_host("d.loss", &one, 1); /* the loss's own gradient */
    for (int p = 0; p < PARAMETERS; p++) all[count++] = on_host(gradient_names[p], gradients[p], sizes[p]);
    known *parameters = all + count;
    for (int p = 0; p < PARAMETERS; p++) {
        all[count] = on_host(names[p], values[p], sizes[p]);
        must(
            clg_array_create(context, sizes[p] * sizeof(float), &all[count].copy.array), "clg_array_create for a copy");
        all[count++].copy.version = 1;
    }

    float first = 0;
    for (int step = 0; step < STEPS; step++) {
        clg_event event = start(train, all, count);
        /* the next batch could be read here, while the device computes */
        finish(event);
        if (!step) first = loss;
        for (int p = 0; p < PARAMETERS; p++) {
            for (size_t i = 0; i < sizes[p]; i++) values[p][i] -= 1e-2f * gradients[p][i];
            parameters[p].copy.version++; /* the host's values are new ones */
        }
    }
    printf("loss: %g at first, %g after %d steps\n", first, loss, STEPS);

    float before = loss;
    finish(start(train, all, count));
    finish(start(infer, all, count)); /* the parameters are on the device by now */
    double sum = 0;
    for (int i = 0; i < TARGETS; i++) sum += ((double)y[i] - t[i]) * ((double)y[i] - t[i]);
    printf("inference: squared differences %g, loss of the last parameters %g\n", sum, loss);
    must(clg_context_destroy(context), "clg_context_destroy"); /* its plans and arrays go with it */
    if (!(loss < before && loss < 0.5f * first && sum < 1.0001 * loss && sum > 0.9999 * loss)) return 1;
    return 0;
}
