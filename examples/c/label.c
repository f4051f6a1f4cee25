/* Labels an image: prints what a model of Caffe, MXNet or ONNX sees in a PPM.
 *
 *     python -m clgraft.core.abi.embed build
 *     cc label.c -Ibuild -Lbuild -Wl,-rpath,$PWD/build -lclgraft -o label
 *     ./label deploy.prototxt net.caffemodel cat.ppm labels.txt
 *
 * It compiles as C++ too. Weights may be "" where a model has them or finds them. Nets of Caffe take blue, green and
 * red from 0 to 255 without their means; other models red, green and blue from 0 to 1, without means, by deviations. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clgraft.h"

enum { TOP = 5, LINE = 256, MOST = 1 << 16 };
static const float means[2][3] = {{0.485f, 0.456f, 0.406f}, {104, 117, 123}};
static const float deviations[2][3] = {{0.229f, 0.224f, 0.225f}, {1, 1, 1}};
static float scores[MOST]; /* one for each class */
static char labels[MOST][LINE];

static void must(int done, const char *what, const char *why) {
    if (!done) fprintf(stderr, "%s: %s\n", what, why), exit(1);
}
#define CALL(call) must((call) == CLG_OK, #call, clg_last_error())

int main(int argc, char **argv) {
    must(argc == 5, "usage", "label MODEL WEIGHTS IMAGE.ppm LABELS.txt");
    const int caffe = strstr(argv[1], ".prototxt") != NULL;
    clg_session session;
    clg_port port = {sizeof port, 0, 0, 0, {0}, {0}, NULL};
    CALL(clg_session_create(argv[1], argv[2], NULL, &session));
    CALL(clg_session_input(session, 0, &port)); /* usual: the model's own sizes, where it has them */
    const size_t rows = port.usual[2] ? port.usual[2] : 224, columns = port.usual[3] ? port.usual[3] : 224;

    unsigned width = 0, height = 0, most = 0;
    FILE *file = fopen(argv[3], "rb");
    must(file && fscanf(file, "P6 %u %u %u", &width, &height, &most) == 3 && most == 255 && fgetc(file) != EOF, argv[3],
         "expected a PPM (P6) of bytes");
    unsigned char *pixels = (unsigned char *)malloc(3 * (size_t)width * height);
    float *data = (float *)malloc(3 * rows * columns * sizeof(float));
    must(pixels && data && fread(pixels, 3 * (size_t)width, height, file) == height, argv[3], "is cut off, or huge");
    for (size_t k = 0, plane = rows * columns; k < 3 * plane; k++) { /* of the nearest pixel */
        size_t c = k / plane, i = k % plane / columns * height / rows, j = k % columns * width / columns;
        float value = (float)pixels[3 * (i * width + j) + (caffe ? 2 - c : c)] / (caffe ? 1.0f : 255.0f);
        data[k] = (value - means[caffe][c]) / deviations[caffe][c];
    }
    clg_tensor x = {sizeof x, CLG_FLOAT32, 4, 0, {1, 3, rows, columns}, data, 3 * rows * columns * sizeof(float)};
    clg_tensor y = {sizeof y, 0, 0, 0, {0}, scores, sizeof scores};
    CALL(clg_session_run(session, &x, 1, &y, 1));
    must(y.dtype == CLG_FLOAT32 && y.ndim > 1, argv[1], "expected a float32 for each class");

    must((file = fopen(argv[4], "r")) != NULL, argv[4], "cannot be read");
    for (size_t i = 0; i < MOST && fgets(labels[i], LINE, file); i++) labels[i][strcspn(labels[i], "\r\n")] = 0;
    for (size_t n = 0, best = 0, classes = y.shape[1]; n < TOP && n < classes; n++) {
        for (size_t i = best = 0; i < classes; i++) best = scores[i] > scores[best] ? i : best;
        printf("%.6f %s\n", scores[best], labels[best]);
        scores[best] = -1e30f;
    }
    return clg_session_destroy(session);
}
