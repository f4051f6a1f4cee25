// Runs a net of Caffe's OpenCL branch and writes what it computes, for tests that compare two ways to run it.
//
//   net cpu|gpu NET OUTPUT [TIMES]
//
// Inputs and parameters hold random numbers, the same in every run; inputs whose names begin with "label" hold 0, 1 or
// 2. What must be overwritten is poisoned first, and gradients of parameters begin with numbers that are to be added
// to. OUTPUT gets records: a line "NAME COUNT", then COUNT floats. With TIMES, it prints the CPU time of a forward and
// backward pass in ms, the least of that many. A library that was loaded before this one may replace layers; what its
// runs copied is printed then.
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "caffe/caffe.hpp"
#include "caffe/backend/device.hpp"

#include "counters.hpp"

using caffe::Blob;
using caffe::BlobBase;
using caffe::Caffe;

namespace {

const int DEVICE = std::getenv("CAFFE_OPENCL_DEVICE") ? std::atoi(std::getenv("CAFFE_OPENCL_DEVICE")) : 0;

Blob<float> *of_floats(BlobBase *blob) { return static_cast<Blob<float> *>(blob); }

void fill(float *values, int count, std::mt19937 *random) {
    for (int i = 0; i < count; i++) values[i] = static_cast<float>((*random)() >> 8) / (1 << 23) - 1;
}

void write(std::ofstream *out, const std::string &name, const float *values, int count) {
    *out << name << ' ' << count << '\n';
    out->write(reinterpret_cast<const char *>(values), count * sizeof(float));
}

double cpu_milliseconds() {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e3 + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-3;
}

void wait(const caffe::Net<float> &net) {  // for all work of the device
    if (Caffe::mode() == Caffe::GPU) net.layers()[0]->get_device()->FinishQueues();
}

void run(const std::string &file, const std::string &output, int times) {
    caffe::Net<float> net(file, caffe::TRAIN, Caffe::GetDefaultDevice());
    std::mt19937 random(17);
    for (BlobBase *input : net.input_blobs()) {
        const auto place = std::find_if(net.blobs().begin(), net.blobs().end(),
                                        [input](const std::shared_ptr<BlobBase> &blob) { return blob.get() == input; });
        float *values = of_floats(input)->mutable_cpu_data();
        fill(values, input->count(), &random);
        if (net.blob_names()[place - net.blobs().begin()].compare(0, 5, "label") == 0)
            for (int i = 0; i < input->count(); i++) values[i] = static_cast<int>((values[i] + 1) * 1.4999f);
    }
    for (const auto &blob : net.params()) {
        fill(of_floats(blob.get())->mutable_cpu_data(), blob->count(), &random);
        fill(of_floats(blob.get())->mutable_cpu_diff(), blob->count(), &random);
    }
    for (const auto &layer : net.layers())
        if (std::string(layer->type()) == "BatchNorm")  // sums of squares and of weights
            for (const auto &blob : layer->blob_bases()) {
                float *values = of_floats(blob.get())->mutable_cpu_data();
                for (int i = 0; i < blob->count(); i++) values[i] = std::abs(values[i]) + 0.5f;
            }
    net.Forward();
    wait(net);
    std::ofstream out(output, std::ios::binary);
    for (size_t i = 0; i < net.blobs().size(); i++)
        write(&out, net.blob_names()[i], of_floats(net.blobs()[i].get())->cpu_data(), net.blobs()[i]->count());
    for (size_t i = 0; i < net.blobs().size(); i++) {
        Blob<float> *blob = of_floats(net.blobs()[i].get());
        const auto &outputs = net.output_blobs();
        if (net.blob_loss_weights().size() > i && net.blob_loss_weights()[i] != 0)
            continue;  // Caffe wrote the loss weight
        float *diff = blob->mutable_cpu_diff();
        if (std::find(outputs.begin(), outputs.end(), blob) != outputs.end())
            fill(diff, blob->count(), &random);
        else
            std::fill(diff, diff + blob->count(), 1e30f);
    }
    net.Backward();
    wait(net);
    for (size_t i = 0; i < net.blobs().size(); i++)
        write(&out, "d." + net.blob_names()[i], of_floats(net.blobs()[i].get())->cpu_diff(), net.blobs()[i]->count());
    for (size_t i = 0; i < net.params().size(); i++) {
        const Blob<float> *blob = of_floats(net.params()[i].get());
        write(&out, "param" + std::to_string(i), blob->cpu_data(), blob->count());
        write(&out, "d.param" + std::to_string(i), blob->cpu_diff(), blob->count());
    }
    double forward = std::numeric_limits<double>::infinity(), backward = forward;
    for (int i = 0; i < times; i++) {
        const double begin = cpu_milliseconds();
        net.Forward();
        wait(net);
        const double middle = cpu_milliseconds();
        net.Backward();
        wait(net);
        forward = std::min(forward, middle - begin);
        backward = std::min(backward, cpu_milliseconds() - middle);
    }
    if (dlsym(RTLD_DEFAULT, "clgraft_caffe_replace")) std::printf("%s\n", counters().c_str());
    if (times) std::printf("forward %.3f backward %.3f\n", forward, backward);
}

}  // namespace

int main(int count, char **words) {
    if (count < 4) {
        std::fprintf(stderr, "net cpu|gpu NET OUTPUT [TIMES]\n");
        return 2;
    }
    FLAGS_logtostderr = 1;
    google::InitGoogleLogging(words[0]);
    if (std::string(words[1]) == "gpu") {
        Caffe::SetDevices({DEVICE});
        Caffe::set_mode(Caffe::GPU);
        Caffe::SetDevice(DEVICE);
    }
    run(words[2], words[3], count > 4 ? std::atoi(words[4]) : 0);
    return 0;
}
