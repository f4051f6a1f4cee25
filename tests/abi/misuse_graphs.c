/* Misuses the functions of clgraft.h for graphs, arrays and runs that are started (see misuse.c). */
#include "misuse.h"

static clg_buffer host(void *memory, uint64_t bytes) {
    return (clg_buffer){
        .size = sizeof(clg_buffer), .kind = CLG_HOST, .dtype = CLG_FLOAT32, .handle = memory, .bytes = bytes};
}

int main(int argc, char **argv) {
    const char *device = argc > 1 ? argv[1] : NULL;
    const char *sums =
        "input x[4] a_name_that_is_longer_than_the_struct_of_an_argument[4]\n"
        "y = x a_name_that_is_longer_than_the_struct_of_an_argument | pointwise x0[4] x1[4] : y0 = x0 + x1;\n"
        "z = y | pointwise x0[4] : y0 = 2 * x0;\noutput y z\n";
    clg_context context = NULL, other = NULL;
    clg_plan plan = NULL, added = NULL;
    clg_array array = NULL, small = NULL, foreign = NULL, gone = NULL;
    clg_event event = NULL;
    clg_graph_options options = {.size = sizeof options};
    char text[128];
    uint32_t done = 7;
    int stack_object[64] = {0};
    float x[4] = {1, 2, 3, 4}, w[4] = {1, 1, 1, 1}, y[4] = {0}, z[4] = {10, 10, 10, 10};

    REFUSED(clg_context_create(device, &context), CLG_OK, "");
    REFUSED(clg_context_create(device, &other), CLG_OK, "");

    REFUSED(clg_graph_create(NULL, sums, NULL, &plan), CLG_INVALID_HANDLE, "clg_context");
    REFUSED(clg_graph_create(context, NULL, NULL, &plan), CLG_INVALID_ARGUMENT, "NULL");
    REFUSED(clg_graph_create(context, sums, NULL, NULL), CLG_INVALID_ARGUMENT, "NULL");
    REFUSED(clg_graph_create(context, "", NULL, &plan), CLG_OK, ""); /* nothing to do */
    REFUSED(clg_plan_run(plan, NULL, 0, NULL, 0), CLG_OK, "");
    REFUSED(clg_plan_destroy(plan), CLG_OK, "");
    REFUSED(clg_graph_create(context, "nonsense", NULL, &plan), CLG_INVALID_PROBLEM, "line 1");
    REFUSED(clg_graph_create(context, "input x[4]\noutput y\n", NULL, &plan), CLG_INVALID_PROBLEM, "'y'");
    options.size = 1;
    REFUSED(clg_graph_create(context, sums, &options, &plan), CLG_INVALID_ARGUMENT, "sizeof");
    options.size = sizeof options, options.gradients = "v";
    REFUSED(clg_graph_create(context, sums, &options, &plan), CLG_INVALID_PROBLEM, "'v'");
    options.gradients = NULL, options.outputs = "y y";
    REFUSED(clg_graph_create(context, sums, &options, &plan), CLG_INVALID_PROBLEM, "once");
    options.outputs = "x+";
    REFUSED(clg_graph_create(context, sums, &options, &plan), CLG_INVALID_PROBLEM, "'x'");
    options.outputs = NULL, options.passes = "-everything";
    REFUSED(clg_graph_create(context, sums, &options, &plan), CLG_INVALID_ARGUMENT, "-everything");
    options.passes = "-all", options.precision = "float23";
    REFUSED(clg_graph_create(context, sums, &options, &plan), CLG_INVALID_ARGUMENT, "float32");
    options.size = offsetof(clg_graph_options, precision); /* a caller whose struct ends there */
    REFUSED(clg_graph_create(context, sums, &options, &plan), CLG_OK, "");
    REFUSED(clg_plan_destroy(plan), CLG_OK, "");
    options.size = sizeof options, options.precision = "float32";
    REFUSED(clg_graph_create(context, sums, &options, &plan), CLG_OK, "");
    options.passes = NULL, options.outputs = "y z+";
    REFUSED(clg_graph_create(context, sums, &options, &added), CLG_OK, "");

    REFUSED(clg_plan_argument_name(NULL, 0, text, sizeof text), CLG_INVALID_HANDLE, "clg_plan");
    REFUSED(clg_plan_argument_name(plan, 4, text, sizeof text), CLG_INVALID_ARGUMENT, "index");
    REFUSED(clg_plan_argument_name(plan, 0, NULL, 1), CLG_INVALID_ARGUMENT, "text");
    REFUSED(clg_plan_argument_name(plan, 0, text, 0), CLG_INVALID_ARGUMENT, "text");
    REFUSED(clg_plan_argument_name(plan, 1, text, sizeof text), CLG_OK, "");
    if (strcmp(text, "a_name_that_is_longer_than_the_struct_of_an_argument")) failures++;

    REFUSED(clg_array_create(NULL, 16, &array), CLG_INVALID_HANDLE, "clg_context");
    REFUSED(clg_array_create(context, 16, NULL), CLG_INVALID_ARGUMENT, "NULL");
    REFUSED(clg_array_create(context, UINT64_MAX / 4, &array), CLG_OUT_OF_MEMORY, "bytes");
    REFUSED(clg_array_create(context, 0, &gone), CLG_OK, "");
    REFUSED(clg_array_read(gone, 0, NULL, 0), CLG_OK, "");
    REFUSED(clg_array_destroy(gone), CLG_OK, "");
    REFUSED(clg_array_destroy(gone), CLG_INVALID_HANDLE, "clg_array");
    REFUSED(clg_array_destroy((clg_array)context), CLG_INVALID_HANDLE, "clg_array");
    REFUSED(clg_array_create(context, 16, &array), CLG_OK, "");
    REFUSED(clg_array_create(context, 12, &small), CLG_OK, "");
    REFUSED(clg_array_create(other, 16, &foreign), CLG_OK, "");
    REFUSED(clg_array_write(gone, 0, x, 16), CLG_INVALID_HANDLE, "clg_array");
    REFUSED(clg_array_write(array, 0, NULL, 16), CLG_INVALID_ARGUMENT, "NULL");
    REFUSED(clg_array_write(array, 0, x, 17), CLG_BUFFER_TOO_SMALL, "17");
    REFUSED(clg_array_write(array, 4, x, 16), CLG_BUFFER_TOO_SMALL, "offset 4");
    REFUSED(clg_array_read(array, UINT64_MAX, x, 16), CLG_BUFFER_TOO_SMALL, "offset");
    REFUSED(clg_array_read((clg_array)stack_object, 0, x, 16), CLG_INVALID_HANDLE, "clg_array");
    REFUSED(clg_array_write(array, 0, x, 16), CLG_OK, "");

    clg_buffer good[4] = {host(x, sizeof x), host(w, sizeof w), host(y, sizeof y), host(z, sizeof z)}, bad[4];
    clg_copy none[4] = {{0}}, copies[4];
#define BROKEN(change, status, word)     \
    memcpy(bad, good, sizeof bad);       \
    memcpy(copies, none, sizeof copies); \
    change;                              \
    REFUSED(clg_plan_start(plan, bad, 4, NULL, 0, copies, &event), status, word)
    BROKEN(bad[0].kind = CLG_ARRAY, CLG_INVALID_HANDLE, "clg_array");
    BROKEN((bad[0].kind = CLG_ARRAY, bad[0].handle = gone), CLG_INVALID_HANDLE, "clg_array");
    BROKEN((bad[0].kind = CLG_ARRAY, bad[0].handle = foreign), CLG_INVALID_ARGUMENT, "another context");
    BROKEN((bad[0].kind = CLG_ARRAY, bad[0].handle = small), CLG_BUFFER_TOO_SMALL, "for x");
    BROKEN((bad[0].kind = CLG_ARRAY, bad[0].handle = array, bad[0].offset = 4), CLG_BUFFER_TOO_SMALL, "offset 4 for x");
    BROKEN((bad[0].kind = CLG_ARRAY, bad[0].handle = array, bad[0].offset = 2), CLG_INVALID_ARGUMENT, "multiple");
    BROKEN(copies[1].array = gone, CLG_INVALID_HANDLE, "clg_array");
    BROKEN(copies[1].array = small, CLG_BUFFER_TOO_SMALL, "an_argument");
    BROKEN(copies[1].array = foreign, CLG_INVALID_ARGUMENT, "another context");
    BROKEN(copies[2].array = array, CLG_INVALID_ARGUMENT, "copy for y");
    BROKEN(
        (bad[0].kind = CLG_ARRAY, bad[0].handle = array, copies[0].array = array), CLG_INVALID_ARGUMENT, "copy for x");
    BROKEN(bad[2].mode = CLG_ACCUMULATE, CLG_INVALID_ARGUMENT, "made for that");
    BROKEN(bad[3].mode = CLG_SKIP, CLG_INVALID_ARGUMENT, "made for that");
    REFUSED(clg_plan_start(NULL, good, 4, NULL, 0, NULL, &event), CLG_INVALID_HANDLE, "clg_plan");
    REFUSED(clg_plan_start(added, good, 4, NULL, 0, NULL, &event), CLG_INVALID_ARGUMENT, "expected CLG_ACCUMULATE");
    if (event) failures++;

    good[3].mode = CLG_ACCUMULATE;
    memset(copies, 0, sizeof copies);
    copies[1] = (clg_copy){array, 5};
    REFUSED(clg_plan_start(added, good, 4, NULL, 0, copies, &event), CLG_OK, "");
    REFUSED(clg_event_wait(event), CLG_OK, "");
    REFUSED(clg_event_done(event, &done), CLG_OK, "");
    if (done != 1 || y[3] != 5 || z[3] != 20) failures++;
    REFUSED(clg_event_done(event, NULL), CLG_INVALID_ARGUMENT, "NULL");
    REFUSED(clg_event_wait((clg_event)plan), CLG_INVALID_HANDLE, "clg_event");
    REFUSED(clg_event_destroy(event), CLG_OK, "");
    REFUSED(clg_event_destroy(event), CLG_INVALID_HANDLE, "clg_event");
    REFUSED(clg_event_wait(event), CLG_INVALID_HANDLE, "clg_event");
    REFUSED(clg_event_done(event, &done), CLG_INVALID_HANDLE, "clg_event");

    REFUSED(clg_plan_start(added, good, 4, NULL, 0, NULL, NULL), CLG_OK, ""); /* without an event it waits */
    if (z[3] != 30) failures++;
    REFUSED(clg_plan_start(added, good, 4, NULL, 0, NULL, &event), CLG_OK, "");
    REFUSED(clg_plan_destroy(added), CLG_OK, "");      /* the run goes on */
    REFUSED(clg_context_destroy(context), CLG_OK, ""); /* and is waited for here */
    REFUSED(clg_event_wait(event), CLG_OK, "");
    if (z[3] != 40) failures++;
    REFUSED(clg_event_destroy(event), CLG_OK, "");
    REFUSED(clg_array_destroy(array), CLG_INVALID_HANDLE, "clg_array"); /* went with its context */
    REFUSED(clg_plan_destroy(plan), CLG_INVALID_HANDLE, "clg_plan");
    REFUSED(clg_context_destroy(other), CLG_OK, "");
    REFUSED(clg_array_read(foreign, 0, x, 4), CLG_INVALID_HANDLE, "clg_array");
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
