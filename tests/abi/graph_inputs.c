/* Graphs whose inputs are outputs, and the names that their gradients have; the precision of products; texts that
 * cannot be read. */
#include "misuse.h"

static clg_buffer of(uint32_t kind, void *memory, uint64_t bytes) {
    return (clg_buffer){
        .size = sizeof(clg_buffer), .kind = kind, .dtype = CLG_FLOAT32, .handle = memory, .bytes = bytes};
}

static void has(clg_plan plan, uint32_t index, const char *name, uint32_t role) {
    clg_argument argument = {.size = sizeof argument};
    char text[64];
    checks++;
    if (clg_plan_argument(plan, index, &argument) || clg_plan_argument_name(plan, index, text, sizeof text) ||
        strcmp(text, name) || strcmp(argument.name, name) || argument.role != role) {
        printf("got argument %u %s of role %u, expected %s of role %u\n", index, text, argument.role, name, role);
        failures++;
    }
}

static void same(const float *found, const float *expected, size_t bytes) {
    checks++;
    if (memcmp(found, expected, bytes)) {
        for (size_t i = 0; i < bytes / sizeof *found; i++) printf("got %g, expected %g\n", found[i], expected[i]);
        failures++;
    }
}

int main(int argc, char **argv) {
    const char *device = argc > 1 ? argv[1] : NULL;
    clg_context context;
    clg_plan plan;
    clg_array in, out;
    clg_graph_options options = {.size = sizeof options};
    const float x[4] = {1, 2, 3, 4}, twice[4] = {2, 4, 6, 8}, ones[4] = {1, 1, 1, 1}, tens[4] = {10, 10, 10, 10};
    float y[4] = {-1, -1, -1, -1}, z[4], d[4];

    REFUSED(clg_context_create(device, &context), CLG_OK, "");
    REFUSED(clg_graph_create(context, "input x[4]\noutput x\n", NULL, &plan), CLG_OK, "");
    has(plan, 0, "x", CLG_IN);
    has(plan, 1, "x", CLG_OUT);
    clg_buffer host[2] = {of(CLG_HOST, (void *)x, sizeof x), of(CLG_HOST, y, sizeof y)};
    REFUSED(clg_plan_run(plan, host, 2, NULL, 0), CLG_OK, "");
    same(y, x, sizeof x);
    REFUSED(clg_array_create(context, sizeof x, &in), CLG_OK, "");
    REFUSED(clg_array_create(context, sizeof x, &out), CLG_OK, "");
    REFUSED(clg_array_write(in, 0, twice, sizeof x), CLG_OK, "");
    clg_buffer arrays[2] = {of(CLG_ARRAY, in, sizeof x), of(CLG_ARRAY, out, sizeof x)};
    REFUSED(clg_plan_run(plan, arrays, 2, NULL, 0), CLG_OK, "");
    REFUSED(clg_array_read(out, 0, y, sizeof x), CLG_OK, "");
    same(y, twice, sizeof x);
    REFUSED(clg_plan_destroy(plan), CLG_OK, "");

    options.outputs = "x+";
    REFUSED(clg_graph_create(context, "input x[4]\noutput x\n", &options, &plan), CLG_OK, "");
    host[1].mode = CLG_ACCUMULATE;
    memcpy(y, x, sizeof x);
    REFUSED(clg_plan_run(plan, host, 2, NULL, 0), CLG_OK, "");
    same(y, twice, sizeof x);
    REFUSED(clg_plan_destroy(plan), CLG_OK, "");

    options.outputs = NULL, options.gradients = "x";
    REFUSED(
        clg_graph_create(context, "input x[4]\ny = x | pointwise x0[4] : y0 = 9 * x0;\noutput y x\n", &options, &plan),
        CLG_OK, "");
    has(plan, 0, "x", CLG_IN);
    has(plan, 1, "d.y", CLG_IN);
    has(plan, 2, "d.x.out", CLG_IN);
    has(plan, 3, "y", CLG_OUT);
    has(plan, 4, "x", CLG_OUT);
    has(plan, 5, "d.x", CLG_OUT);
    clg_buffer all[6] = {
        of(CLG_HOST, (void *)x, sizeof x),
        of(CLG_HOST, (void *)ones, sizeof x),
        of(CLG_HOST, (void *)ones, sizeof x),
        of(CLG_HOST, z, sizeof x),
        of(CLG_HOST, y, sizeof x),
        of(CLG_HOST, d, sizeof x)};
    REFUSED(clg_plan_run(plan, all, 6, NULL, 0), CLG_OK, "");
    same(y, x, sizeof x);
    same(d, tens, sizeof x);
    REFUSED(clg_plan_destroy(plan), CLG_OK, "");

    options.outputs = NULL, options.gradients = NULL; /* 257 has one bit more than bfloat16 */
    const float row[2] = {257, 3}, rounded[2] = {256, 3}, unit[4] = {1, 0, 0, 1};
    for (int i = 0; i < 2; i++) {
        options.precision = i ? "bfloat16" : "float32";
        REFUSED(clg_graph_create(
                    context, "input x[1,2] w[2,2]\ny = x w | dense forward n1 i2 o2\noutput y\n", &options, &plan),
                CLG_OK, "");
        clg_buffer product[3] = {of(CLG_HOST, (void *)row, sizeof row), of(CLG_HOST, (void *)unit, sizeof unit),
                                 of(CLG_HOST, y, sizeof row)};
        REFUSED(clg_plan_run(plan, product, 3, NULL, 0), CLG_OK, "");
        same(y, i ? rounded : row, sizeof row);
        REFUSED(clg_plan_destroy(plan), CLG_OK, "");
    }

    static char digits[5100], blanks[200100];
    snprintf(digits, sizeof digits, "input x[%05000d]\noutput x\n", 9);
    memset(digits + 8, '9', 5000);
    REFUSED(clg_graph_create(context, digits, NULL, &plan), CLG_INVALID_PROBLEM, "[graph]");
    snprintf(blanks, sizeof blanks, "input x[4]\ny = x%*s\noutput x\n", 200000, "");
    REFUSED(clg_graph_create(context, blanks, NULL, &plan), CLG_INVALID_PROBLEM, "line 2");
    REFUSED(clg_graph_create(context, "input x[4]\noutput x x\n", NULL, &plan), CLG_INVALID_PROBLEM, "once");
    REFUSED(clg_graph_create(context, "input x[4]\nscalar a a\noutput x\n", NULL, &plan), CLG_INVALID_PROBLEM, "once");
    REFUSED(clg_graph_create(context, "input x[4]\nscalar inf\noutput x\n", NULL, &plan), CLG_INVALID_PROBLEM, "'inf'");
    REFUSED(clg_context_destroy(context), CLG_OK, "");
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
