/* Misuses every function of clgraft.h: each call must come back with the expected status and a message, and
 * leave the process alive. */
#include "misuse.h"

static void count_answers(void *with, const void *answer, uint64_t bytes) {
    (void)answer, (void)bytes;
    ++*(int *)with;
}

int main(int argc, char **argv) {
    clg_context context = NULL, gone = NULL, other = NULL;
    clg_plan plan = NULL, unwanted = NULL;
    char text[64];
    uint32_t count = 0;
    int stack_object[64] = {0};
    const char *device = argc > 1 ? argv[1] : NULL;
    const char *small = "conv forward n1 ic1 iw4 oc1 kw3";

    REFUSED(clg_context_create(device, NULL), CLG_INVALID_ARGUMENT, "NULL");
    REFUSED(clg_context_create("no such device", &context), CLG_INVALID_ARGUMENT, "no such device");
    REFUSED(clg_context_create_from_cl(NULL, NULL, NULL, &context), CLG_INVALID_ARGUMENT, "cl_context");
    REFUSED(clg_context_create_from_cl(stack_object, stack_object, stack_object, NULL), CLG_INVALID_ARGUMENT, "NULL");
    REFUSED(clg_context_create(device, &context), CLG_OK, "");
    REFUSED(clg_context_create(device, &gone), CLG_OK, "");
    REFUSED(clg_plan_create(gone, small, &unwanted), CLG_OK, "");
    REFUSED(clg_context_destroy(gone), CLG_OK, "");
    REFUSED(clg_plan_run(unwanted, NULL, 0, NULL, 0), CLG_INVALID_HANDLE, "clg_plan"); /* went with its context */

    REFUSED(clg_context_destroy(NULL), CLG_INVALID_HANDLE, "clg_context");
    REFUSED(clg_context_destroy(gone), CLG_INVALID_HANDLE, "clg_context");
    REFUSED(clg_context_destroy((clg_context)stack_object), CLG_INVALID_HANDLE, "clg_context");
    REFUSED(clg_context_finish(NULL), CLG_INVALID_HANDLE, "clg_context");
    REFUSED(clg_context_finish(gone), CLG_INVALID_HANDLE, "clg_context");
    REFUSED(clg_context_finish((clg_context)stack_object), CLG_INVALID_HANDLE, "clg_context");

    REFUSED(clg_plan_create(NULL, small, &plan), CLG_INVALID_HANDLE, "clg_context");
    REFUSED(clg_plan_create(gone, small, &plan), CLG_INVALID_HANDLE, "clg_context");
    REFUSED(clg_plan_create(context, NULL, &plan), CLG_INVALID_ARGUMENT, "NULL");
    REFUSED(clg_plan_create(context, small, NULL), CLG_INVALID_ARGUMENT, "NULL");
    REFUSED(clg_plan_create(context, "", &plan), CLG_INVALID_PROBLEM, "expected");
    REFUSED(clg_plan_create(context, "\xff\xfe nonsense", &plan), CLG_INVALID_PROBLEM, "expected");
    REFUSED(clg_plan_create(context, "conv forward n1 ic1 iw2 oc1 kw3", &plan), CLG_INVALID_PROBLEM, "kernel");
    REFUSED(clg_plan_create(context, "conv forward n1 ic3 iw4 oc4 kw3 g2", &plan), CLG_INVALID_PROBLEM, "groups");
    REFUSED(clg_plan_create(context, "conv forward n1 ic1 iw4 oc1 kw3 sw0", &plan), CLG_INVALID_PROBLEM, "stride");
    REFUSED(clg_plan_create(context, "conv forward f8 n1 ic1 iw4 oc1 kw3", &plan), CLG_INVALID_PROBLEM, "f8");

    clg_conv conv = {
        .size = sizeof conv,
        .direction = CLG_FORWARD,
        .dtype = CLG_FLOAT32,
        .ndim = 1,
        .batch = 1,
        .in_channels = 1,
        .out_channels = 1,
        .groups = 1,
        .in = {4},
        .kernel = {3},
        .stride = {1},
        .dilate = {1}};
    REFUSED(clg_plan_create_conv(context, NULL, &plan), CLG_INVALID_ARGUMENT, "size");
    REFUSED(clg_plan_create_conv(context, &conv, NULL), CLG_INVALID_ARGUMENT, "NULL");
    REFUSED(clg_plan_create_conv(NULL, &conv, &plan), CLG_INVALID_HANDLE, "clg_context");
    conv.size = 8;
    REFUSED(clg_plan_create_conv(context, &conv, &plan), CLG_INVALID_ARGUMENT, "sizeof");
    conv.size = sizeof conv, conv.ndim = 4;
    REFUSED(clg_plan_create_conv(context, &conv, &plan), CLG_INVALID_PROBLEM, "ndim");
    conv.ndim = 1, conv.direction = 9;
    REFUSED(clg_plan_create_conv(context, &conv, &plan), CLG_INVALID_PROBLEM, "direction");
    conv.direction = CLG_FORWARD, conv.dtype = CLG_UINT8;
    REFUSED(clg_plan_create_conv(context, &conv, &plan), CLG_WRONG_DTYPE, "dtype");
    conv.dtype = CLG_FLOAT32, conv.stride[0] = UINT64_MAX;
    REFUSED(clg_plan_create_conv(context, &conv, &plan), CLG_INVALID_PROBLEM, "stride");

    REFUSED(clg_plan_create(context, small, &plan), CLG_OK, "");
    REFUSED(clg_plan_describe(plan, NULL, 10), CLG_INVALID_ARGUMENT, "text");
    REFUSED(clg_plan_describe(plan, text, 0), CLG_INVALID_ARGUMENT, "text");
    REFUSED(clg_plan_describe(NULL, text, sizeof text), CLG_INVALID_HANDLE, "clg_plan");
    REFUSED(clg_plan_describe((clg_plan)context, text, sizeof text), CLG_INVALID_HANDLE, "clg_plan");
    REFUSED(clg_plan_counts(NULL, &count, &count), CLG_INVALID_HANDLE, "clg_plan");
    clg_argument argument = {.size = sizeof argument};
    REFUSED(clg_plan_argument(NULL, 0, &argument), CLG_INVALID_HANDLE, "clg_plan");
    REFUSED(clg_plan_argument(plan, 3, &argument), CLG_INVALID_ARGUMENT, "index");
    REFUSED(clg_plan_argument(plan, 0, NULL), CLG_INVALID_ARGUMENT, "size");
    argument.size = 1;
    REFUSED(clg_plan_argument(plan, 0, &argument), CLG_INVALID_ARGUMENT, "sizeof");

    float x[4] = {1, 2, 3, 4}, w[3] = {1, 1, 1}, y[2] = {0, 0};
    clg_buffer good[3] = {{sizeof(clg_buffer), CLG_HOST, CLG_FLOAT32, 0, x, 0, sizeof x},
                          {sizeof(clg_buffer), CLG_HOST, CLG_FLOAT32, 0, w, 0, sizeof w},
                          {sizeof(clg_buffer), CLG_HOST, CLG_FLOAT32, 0, y, 0, sizeof y}};
    double scalar = 1;
    REFUSED(clg_plan_run(NULL, good, 3, NULL, 0), CLG_INVALID_HANDLE, "clg_plan");
    REFUSED(clg_plan_run((clg_plan)stack_object, good, 3, NULL, 0), CLG_INVALID_HANDLE, "clg_plan");
    REFUSED(clg_plan_run(plan, good, 2, NULL, 0), CLG_INVALID_ARGUMENT, "buffers");
    REFUSED(clg_plan_run(plan, NULL, 3, NULL, 0), CLG_INVALID_ARGUMENT, "buffers");
    REFUSED(clg_plan_run(plan, good, 3, &scalar, 1), CLG_INVALID_ARGUMENT, "scalars");
    clg_buffer bad[3];
#define BROKEN(change, status, word) \
    memcpy(bad, good, sizeof bad);   \
    change;                          \
    REFUSED(clg_plan_run(plan, bad, 3, NULL, 0), status, word)
    BROKEN(bad[0].size = 0, CLG_INVALID_ARGUMENT, "sizeof");
    BROKEN(bad[0].bytes = 15, CLG_BUFFER_TOO_SMALL, "for x");
    BROKEN(bad[2].bytes = 0, CLG_BUFFER_TOO_SMALL, "for y");
    BROKEN(bad[1].dtype = CLG_FLOAT64, CLG_WRONG_DTYPE, "for w");
    BROKEN(bad[1].kind = 77, CLG_INVALID_ARGUMENT, "kind");
    BROKEN(bad[0].mode = CLG_ACCUMULATE, CLG_INVALID_ARGUMENT, "mode");
    BROKEN(bad[2].mode = 3, CLG_INVALID_ARGUMENT, "mode");
    BROKEN(bad[0].handle = NULL, CLG_INVALID_ARGUMENT, "NULL");
    BROKEN(bad[0].offset = 1, CLG_INVALID_ARGUMENT, "multiple");

    REFUSED(clg_plan_run(plan, good, 3, NULL, 0), CLG_OK, ""); /* after all that it still works */
    if (y[0] != 6 || y[1] != 9) failures++;
    REFUSED(clg_plan_destroy(NULL), CLG_INVALID_HANDLE, "clg_plan");
    REFUSED(clg_plan_destroy((clg_plan)context), CLG_INVALID_HANDLE, "clg_plan");
    REFUSED(clg_plan_destroy(plan), CLG_OK, "");
    REFUSED(clg_plan_destroy(plan), CLG_INVALID_HANDLE, "clg_plan");
    REFUSED(clg_plan_run(plan, good, 3, NULL, 0), CLG_INVALID_HANDLE, "clg_plan");

    int answers = 0; /* of modules that do not answer: nothing is received */
    REFUSED(clg_ask(NULL, "x", 1, count_answers, &answers), CLG_INVALID_ARGUMENT, "module");
    REFUSED(clg_ask("math", "x", 1, NULL, &answers), CLG_INVALID_ARGUMENT, "receive");
    REFUSED(clg_ask("math", NULL, 1, count_answers, &answers), CLG_INVALID_ARGUMENT, "question");
    REFUSED(clg_ask("math", "x", 1, count_answers, &answers), CLG_PLANNER_ERROR, "answer");
    REFUSED(clg_ask("math", "x", UINT64_MAX, count_answers, &answers), CLG_PLANNER_ERROR, "Error");
    REFUSED(clg_ask("", "x", 1, count_answers, &answers), CLG_PLANNER_ERROR, "Error");
    REFUSED(clg_ask(".relative", "x", 1, count_answers, &answers), CLG_PLANNER_ERROR, "Error");
    REFUSED(clg_ask("no_such_module", "x", 1, count_answers, &answers), CLG_PLANNER_ERROR, "no_such_module");
    REFUSED(clg_ask("\xff\xfe", "x", 1, count_answers, &answers), CLG_PLANNER_ERROR, "Error");
    if (answers) failures++;
    REFUSED(clg_context_destroy(context), CLG_OK, "");
    REFUSED(clg_context_create(device, &other), CLG_OK, ""); /* a new handle is not an old one */
    REFUSED(clg_context_finish(context), CLG_INVALID_HANDLE, "clg_context");
    REFUSED(clg_context_finish(other), CLG_OK, "");
    printf("%d checks, %d failures, version %u\n", checks, failures, clg_version());
    return failures != 0;
}
