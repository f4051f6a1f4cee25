// Runs recurrent layers that no net holds, and prints their outputs and gradients: Caffe makes
// an unrolled net for each.
#include <cstdio>
#include <vector>

#include "caffe/layers/lstm_layer.hpp"
#include "caffe/layers/rnn_layer.hpp"

typedef caffe::Blob<float> Blob;

static void fill(Blob *blob, unsigned seed) {
    for (int i = 0; i < blob->count(); i++) {
        seed = seed * 1664525u + 1013904223u;
        blob->mutable_cpu_data()[i] = float(seed >> 8) / float(1 << 24) - 0.5f;
        blob->mutable_cpu_diff()[i] = 0;
    }
}

template <typename Layer>
static void run() {
    caffe::LayerParameter parameters;
    parameters.mutable_recurrent_param()->set_num_output(3);
    parameters.mutable_recurrent_param()->mutable_weight_filler()->set_type("constant");
    Blob x(std::vector<int>({4, 2, 5})), cont(std::vector<int>({4, 2})), y;
    fill(&x, 1);
    fill(&cont, 2);
    for (int i = 0; i < cont.count(); i++) cont.mutable_cpu_data()[i] = i >= 2;
    const std::vector<Blob *> bottom({&x, &cont}), top({&y});
    Layer layer(parameters);
    layer.SetUp(bottom, top);
    for (std::size_t i = 0; i < layer.blobs().size(); i++) fill(layer.blobs()[i].get(), 10 + unsigned(i));
    layer.Forward(bottom, top);
    for (int i = 0; i < y.count(); i++) {
        std::printf("%g\n", y.cpu_data()[i]);
        y.mutable_cpu_diff()[i] = 1;
    }
    layer.Backward(top, {true, false}, bottom);
    for (int i = 0; i < x.count(); i++) std::printf("%g\n", x.cpu_diff()[i]);
    for (const auto &blob : layer.blobs())
        for (int i = 0; i < blob->count(); i++) std::printf("%g\n", blob->cpu_diff()[i]);
}

int main() {
    run<caffe::LSTMLayer<float>>();
    run<caffe::RNNLayer<float>>();
}
