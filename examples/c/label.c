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

enum { TOP = 5, LINE = 256 };
static const float means[2][3] = {{0.485f, 0.456f, 0.406f}, {104, 117, 123}};
static const float deviations[2][3] = {{0.229f, 0.224f, 0.225f}, {1, 1, 1}};
static clg_port port; /* of the image */
static clg_tensor x, y;

static void must(int done, const char *what, const char *why) {
    if (done) return;
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}
#define CALL(call) must((call) == CLG_OK, #call, clg_last_error())

int main(int argc, char **argv) {
    must(argc == 5, "usage", "label MODEL WEIGHTS IMAGE.ppm LABELS.txt");
    const int caffe = strstr(argv[1], ".prototxt") != NULL;
    clg_session session;
    CALL(clg_session_create(argv[1], argv[2], NULL, &session));
    port.size = sizeof port;
    CALL(clg_session_input(session, 0, &port));
    x.size = y.size = sizeof x;
    x.dtype = CLG_FLOAT32;
    x.ndim = 4; /* one image, three channels, and the model's own height and width, where it has them */
    x.shape[0] = 1, x.shape[1] = 3;
    for (int axis = 2; axis < 4; axis++) x.shape[axis] = port.ndim == 4 && port.usual[axis] ? port.usual[axis] : 224u;

    unsigned width = 0, height = 0, most = 0;
    FILE *file = fopen(argv[3], "rb");
    must(file && fscanf(file, "P6 %u %u %u", &width, &height, &most) == 3 && most == 255 && fgetc(file) != EOF, argv[3],
         "expected a PPM (P6) of bytes");
    unsigned char *pixels = (unsigned char *)malloc(3 * (size_t)width * height);
    must(pixels && fread(pixels, 3 * (size_t)width, height, file) == height, argv[3], "is cut off");
    fclose(file);

    const size_t rows = (size_t)x.shape[2], columns = (size_t)x.shape[3];
    x.bytes = 3 * rows * columns * sizeof(float);
    float *data = (float *)malloc((size_t)x.bytes);
    must(data != NULL, argv[3], "no memory");
    for (size_t c = 0; c < 3; c++)
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < columns; j++) { /* of the nearest pixel */
                size_t pixel = i * height / rows * width + j * width / columns;
                float value = (float)pixels[3 * pixel + (caffe ? 2 - c : c)] / (caffe ? 1.0f : 255.0f);
                data[(c * rows + i) * columns + j] = (value - means[caffe][c]) / deviations[caffe][c];
            }
    x.data = data;
    CALL(clg_session_shapes(session, &x, 1, &y, 1));
    must(y.dtype == CLG_FLOAT32, argv[1], "expected classes as float32");
    float *scores = (float *)malloc((size_t)y.bytes);
    y.data = scores;
    CALL(clg_session_run(session, &x, 1, &y, 1));
    CALL(clg_session_destroy(session));

    const size_t classes = (size_t)y.bytes / sizeof(float);
    char (*labels)[LINE] = (char (*)[LINE])calloc(classes, LINE);
    must((file = fopen(argv[4], "r")) != NULL, argv[4], "cannot be read");
    for (size_t i = 0; i < classes && fgets(labels[i], LINE, file); i++) labels[i][strcspn(labels[i], "\r\n")] = 0;
    for (size_t n = 0; n < TOP && n < classes; n++) {
        size_t best = 0;
        for (size_t i = 1; i < classes; i++)
            if (scores[i] > scores[best]) best = i;
        printf("%.6f %s\n", scores[best], labels[best]);
        scores[best] = -1e30f;
    }
    return 0;
}
