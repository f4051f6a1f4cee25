// A convolution on blobs of Caffe's OpenCL branch: their memory, context and queue are used as they are.
//
// Prints the largest difference from the product in double precision, and what was copied.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "caffe/caffe.hpp"
#include "caffe/backend/device.hpp"
#include "caffe/backend/vptr.hpp"

#include "counters.hpp"

using caffe::Blob;
using caffe::Caffe;

namespace {

const int DEVICE = std::getenv("CAFFE_OPENCL_DEVICE") ? std::atoi(std::getenv("CAFFE_OPENCL_DEVICE")) : 0;
const int BATCH = 3, IN = 5, OUT = 7, SIZE = 11, SKIPPED = 24;  // the first floats of x, which the problem does not use

void expect(clg_status status) {
    if (status == CLG_OK) return;
    std::fprintf(stderr, "status %d: %s\n", status, clg_last_error());
    std::exit(1);
}

clg_buffer device_buffer(cl_mem memory, uint64_t offset, uint64_t bytes) {
    clg_buffer buffer = {sizeof(clg_buffer), CLG_DEVICE, CLG_FLOAT32, CLG_OVERWRITE, memory, offset, bytes};
    return buffer;
}

}  // namespace

int main(int, char **words) {
    google::InitGoogleLogging(words[0]);
    Caffe::SetDevices({DEVICE});
    Caffe::set_mode(Caffe::GPU);
    Caffe::SetDevice(DEVICE);
    caffe::Device *device = Caffe::GetDefaultDevice();
    Blob<float> x({SKIPPED + BATCH * IN * SIZE * SIZE}, device), w({OUT, IN}, device),
        y({BATCH, OUT, SIZE, SIZE}, device);
    for (int i = 0; i < x.count(); i++) x.mutable_cpu_data()[i] = static_cast<float>(i * 7 % 31 - 15);
    for (int i = 0; i < w.count(); i++) w.mutable_cpu_data()[i] = static_cast<float>(i * 5 % 13 - 6);
    std::fill_n(y.mutable_cpu_data(), y.count(), 1e30f);

    cl_context context = Caffe::GetOpenCLContext(device->id(), false);
    cl_command_queue queue = Caffe::GetOpenCLQueue(device->id(), false);
    cl_device_id cl_device = nullptr;
    clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof cl_device, &cl_device, nullptr);
    clg_context clg = nullptr;
    expect(clg_context_create_from_cl(context, cl_device, queue, &clg));
    clg_plan plan = nullptr;
    expect(clg_plan_create(clg, "conv forward n3 ic5 ih11 iw11 oc7 kh1 kw1", &plan));

    caffe::vptr<const float> from = x.gpu_data();
    from += SKIPPED;
    caffe::vptr<const float> weights = w.gpu_data();
    caffe::vptr<float> to = y.mutable_gpu_data();
    const clg_buffer buffers[] = {
        device_buffer(from.get_ocl_mem(), from.get_ocl_off() * sizeof(float), (x.count() - SKIPPED) * sizeof(float)),
        device_buffer(weights.get_ocl_mem(), weights.get_ocl_off() * sizeof(float), w.count() * sizeof(float)),
        device_buffer(to.get_ocl_mem(), to.get_ocl_off() * sizeof(float), y.count() * sizeof(float)),
    };
    expect(clg_plan_run(plan, buffers, 3, nullptr, 0));
    const std::string counted = counters();

    double largest = 0;
    const float *result = y.cpu_data();
    for (int n = 0; n < BATCH; n++)
        for (int o = 0; o < OUT; o++)
            for (int p = 0; p < SIZE * SIZE; p++) {
                double sum = 0;
                for (int c = 0; c < IN; c++)
                    sum += static_cast<double>(x.cpu_data()[SKIPPED + (n * IN + c) * SIZE * SIZE + p]) *
                           w.cpu_data()[o * IN + c];
                largest = std::max(largest, std::abs(sum - result[(n * OUT + o) * SIZE * SIZE + p]));
            }
    std::printf("difference %g %s\n", largest, counted.c_str());
    expect(clg_context_destroy(clg));
    return 0;
}
