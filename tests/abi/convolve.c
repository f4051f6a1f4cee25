/* A C program that knows clgraft.h and nothing else: convolves, takes the gradients, and
 * compares with loops in double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clgraft.h"

enum { N = 2, IC = 4, H = 9, W = 7, OC = 6, G = 2, K = 3, S = 2, P = 1, D = 1 };
enum { OH = (H + 2 * P - D * (K - 1) - 1) / S + 1, OW = (W + 2 * P - D * (K - 1) - 1) / S + 1 };
enum { ICG = IC / G, OCG = OC / G };

static float x[N * IC * H * W], w[OC * ICG * K * K], b[OC], y[N * OC * OH * OW], dy[N * OC * OH * OW];
static float dx[N * IC * H * W], dw[OC * ICG * K * K], db[OC];
static double ry[N * OC * OH * OW], rdx[N * IC * H * W], rdw[OC * ICG * K * K], rdb[OC];

static void must(clg_status status, const char *what) {
    if (status == CLG_OK) return;
    fprintf(stderr, "%s: status %d: %s\n", what, (int)status, clg_last_error());
    exit(1);
}

static void reference(void) {
    for (int n = 0; n < N; n++)
        for (int o = 0; o < OC; o++)
            for (int u = 0; u < OH; u++)
                for (int v = 0; v < OW; v++) {
                    int at = ((n * OC + o) * OH + u) * OW + v;
                    double sum = b[o];
                    for (int c = 0; c < ICG; c++)
                        for (int i = 0; i < K; i++)
                            for (int j = 0; j < K; j++) {
                                int r = u * S - P + i * D, q = v * S - P + j * D;
                                if (r < 0 || r >= H || q < 0 || q >= W) continue;
                                int xi = ((n * IC + o / OCG * ICG + c) * H + r) * W + q,
                                    wi = ((o * ICG + c) * K + i) * K + j;
                                sum += (double)x[xi] * w[wi];
                                rdx[xi] += (double)dy[at] * w[wi];
                                rdw[wi] += (double)dy[at] * x[xi];
                            }
                    ry[at] = sum;
                    rdb[o] += dy[at];
                }
}

static void random_fill(float *values, size_t count) {
    for (size_t i = 0; i < count; i++) values[i] = (float)rand() / (float)RAND_MAX - 0.5f;
}

static double error(const float *got, const double *expected, size_t count, double times) {
    double worst = 0;
    for (size_t i = 0; i < count; i++)
        worst = fmax(worst, isnan(got[i]) ? INFINITY : fabs(got[i] - times * expected[i]));
    return worst;
}

static clg_buffer host(float *values, size_t bytes, uint32_t mode) {
    clg_buffer buffer = {sizeof buffer, CLG_HOST, CLG_FLOAT32, mode, values, 0, bytes};
    return buffer;
}

static void run(clg_context context, uint32_t direction, clg_buffer *buffers, uint32_t count) {
    clg_conv conv = {
        .size = sizeof conv,
        .direction = direction,
        .dtype = CLG_FLOAT32,
        .ndim = 2,
        .batch = N,
        .in_channels = IC,
        .out_channels = OC,
        .groups = G,
        .in = {H, W},
        .kernel = {K, K},
        .stride = {S, S},
        .pad_begin = {P, P},
        .pad_end = {P, P},
        .dilate = {D, D},
        .bias = direction == CLG_FORWARD};
    clg_plan plan;
    char text[512];
    uint32_t wanted = 0;
    must(clg_plan_create_conv(context, &conv, &plan), "clg_plan_create_conv");
    must(clg_plan_describe(plan, text, sizeof text), "clg_plan_describe");
    must(clg_plan_counts(plan, &wanted, NULL), "clg_plan_counts");
    if (wanted != count) {
        fprintf(stderr, "got %u buffers in the plan, expected %u\n", wanted, count);
        exit(1);
    }
    for (uint32_t i = 0; i < wanted; i++) {
        clg_argument argument = {.size = sizeof argument};
        must(clg_plan_argument(plan, i, &argument), "clg_plan_argument");
        if (argument.bytes != buffers[i].bytes) {
            fprintf(stderr, "got %llu bytes for %s, expected %llu\n", (unsigned long long)argument.bytes, argument.name,
                    (unsigned long long)buffers[i].bytes);
            exit(1);
        }
    }
    must(clg_plan_run(plan, buffers, count, NULL, 0), "clg_plan_run");
    must(clg_plan_destroy(plan), "clg_plan_destroy");
    printf("%s\n", text);
}

int main(int argc, char **argv) {
    random_fill(x, sizeof x / 4);
    random_fill(w, sizeof w / 4);
    random_fill(b, OC);
    random_fill(dy, sizeof dy / 4);
    memset(y, 0xff, sizeof y); /* NaN */
    memset(dx, 0xff, sizeof dx);
    memset(dw, 0xff, sizeof dw);
    memset(db, 0xff, sizeof db);
    reference();
    clg_context context;
    must(clg_context_create(argc > 1 ? argv[1] : NULL, &context), "clg_context_create");
    clg_buffer bx = host(x, sizeof x, 0), bw = host(w, sizeof w, 0), bb = host(b, sizeof b, 0),
               bdy = host(dy, sizeof dy, 0);
    run(context, CLG_FORWARD, (clg_buffer[]){bx, bw, bb, host(y, sizeof y, 0)}, 4);
    run(context, CLG_BACKWARD_DATA, (clg_buffer[]){bdy, bw, host(dx, sizeof dx, 0)}, 3);
    run(context, CLG_BACKWARD_FILTER, (clg_buffer[]){bx, bdy, host(dw, sizeof dw, 0)}, 3);
    run(context, CLG_BACKWARD_FILTER, (clg_buffer[]){bx, bdy, host(dw, sizeof dw, CLG_ACCUMULATE)}, 3);
    run(context, CLG_BACKWARD_BIAS, (clg_buffer[]){bdy, host(db, sizeof db, 0)}, 2);
    double errors[] = {error(y, ry, sizeof y / 4, 1), error(dx, rdx, sizeof dx / 4, 1),
                       error(dw, rdw, sizeof dw / 4, 2), error(db, rdb, OC, 1)};
    printf("errors: y %g dx %g dw %g db %g\n", errors[0], errors[1], errors[2], errors[3]);
    for (int i = 0; i < 4; i++)
        if (!(errors[i] < 2e-5)) return 1;
    must(clg_context_destroy(context), "clg_context_destroy");
    return 0;
}
