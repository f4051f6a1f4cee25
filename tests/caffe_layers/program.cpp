// A C++ program with Caffe nets: clgraft's layers against Caffe's own, as float and double, and in several threads.
#include <cmath>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "caffe/net.hpp"
#include "clgraft_caffe.h"

template <typename T>
static void fill(caffe::Blob<T> *blob, unsigned seed) {
    for (int i = 0; i < blob->count(); i++) {
        seed = seed * 1664525u + 1013904223u;
        blob->mutable_cpu_data()[i] = T(seed >> 8) / T(1 << 24) - T(0.5);
    }
}

template <typename T>
static double apart(const T *a, const T *b, int count) {
    double error = 0, size = 0;
    for (int i = 0; i < count; i++) {
        error += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
        size += double(b[i]) * b[i];
    }
    return std::sqrt(error / (size > 0 ? size : 1));
}

template <typename T>
static void start(caffe::Net<T> *net) {
    unsigned seed = 1;
    for (int i = 0; i < net->num_inputs(); i++) fill(net->input_blobs()[i], seed++);
    for (const auto &blob : net->params()) fill(blob.get(), seed++);
}

// Returns the largest relative difference of the outputs and of the gradients of inputs and parameters, over some
// steps, and sets where it is.
template <typename T>
static double compare(const char *path, std::string *where) {
    clgraft_caffe_replace("");
    caffe::Net<T> own(path, caffe::TRAIN);
    clgraft_caffe_replace("all");
    caffe::Net<T> ours(path, caffe::TRAIN);
    start(&own);
    start(&ours);
    double worst = 0;
    for (int step = 0; step < 3; step++) {
        for (caffe::Net<T> *net : {&own, &ours}) {
            net->ClearParamDiffs();
            net->Forward();
            net->Backward();
        }
        const auto take = [&](double found, const std::string &name) {
            if (!(found > worst || found != found)) return;
            worst = found;
            *where = name + " in step " + std::to_string(step);
        };
        for (int i = 0; i < own.num_outputs(); i++)
            take(apart(ours.output_blobs()[i]->cpu_data(), own.output_blobs()[i]->cpu_data(),
                       own.output_blobs()[i]->count()),
                 "output");
        take(apart(ours.input_blobs()[0]->cpu_diff(), own.input_blobs()[0]->cpu_diff(), own.input_blobs()[0]->count()),
             "dx");
        for (std::size_t i = 0; i < own.params().size(); i++) {
            const std::string name = "parameter " + std::to_string(i);
            take(apart(ours.params()[i]->cpu_diff(), own.params()[i]->cpu_diff(), own.params()[i]->count()),
                 "gradient of " + name);
            take(apart(ours.params()[i]->cpu_data(), own.params()[i]->cpu_data(), own.params()[i]->count()), name);
        }
    }
    return worst;
}

static void train(const char *path, float *loss) {
    caffe::Net<float> net(path, caffe::TRAIN);
    start(&net);
    for (int step = 0; step < 5; step++) {
        net.Forward(loss);
        net.Backward();
    }
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    std::string single_at, twice_at;
    const double single = compare<float>(argv[1], &single_at), twice = compare<double>(argv[1], &twice_at);
    std::vector<float> losses(3);
    std::vector<std::thread> threads;
    train(argv[1], &losses[0]);
    for (int i = 1; i < 3; i++) threads.emplace_back(train, argv[1], &losses[i]);
    for (std::thread &thread : threads) thread.join();
    unsigned long long counts[2];
    clgraft_caffe_served(counts);
    std::printf("float %g (%s) double %g (%s), losses %g %g %g, served %llu handed over %llu\n", single,
                single_at.c_str(), twice, twice_at.c_str(), losses[0], losses[1], losses[2], counts[0], counts[1]);
    return !(single < 1e-4 && twice < 1e-10 && losses[0] == losses[1] && losses[0] == losses[2] && counts[0] &&
             !counts[1]);
}
