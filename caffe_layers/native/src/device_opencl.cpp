// Caffe's OpenCL branch: plans work in place on its buffers, in its context and in its queue, so nothing is copied.
#include <map>
#include <mutex>

#include "caffe/backend/device.hpp"
#include "caffe/backend/vptr.hpp"

#include "layer.hpp"

namespace clgraft_caffe {

namespace {

template <typename Pointer>
void point_to(const Pointer &memory, std::size_t item, clg_buffer *buffer) {
    buffer->kind = CLG_DEVICE;
    buffer->handle = memory.get_ocl_mem();
    buffer->offset = static_cast<uint64_t>(memory.get_ocl_off()) * item;
}

// The branch can also be on CUDA's devices, whose memory clgraft does not share.
Place place_of(const Device *device) {
    return device->backend() == caffe::BACKEND_OPENCL ? Place::device : Place::host;
}

void expect(bool good, const char *problem) {
    if (!good) throw Refusal(problem);
}

}  // namespace

clg_context context_for(Place place, Device *device) {
    if (place == Place::host) return context_on_host();
    static std::mutex mutex;
    // never destroyed: it outlives static objects
    static std::map<cl_context, clg_context> &contexts = *new std::map<cl_context, clg_context>();
    const int number = static_cast<int>(device->id());
    const cl_context shared = caffe::Caffe::GetOpenCLContext(number, false);
    {
        std::lock_guard<std::mutex> lock(mutex);
        const auto found = contexts.find(shared);
        if (found != contexts.end()) return found->second;
    }
    const cl_command_queue queue = caffe::Caffe::GetOpenCLQueue(number, false);
    cl_device_id on = nullptr;
    clg_context made = nullptr;
    clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof on, &on, nullptr);
    // under no lock: another thread may hold the interpreter's and wait for ours
    if (clg_context_create_from_cl(shared, on, queue, &made) != CLG_OK) throw Refusal(clg_last_error());
    std::lock_guard<std::mutex> lock(mutex);
    const auto kept = contexts.insert(std::make_pair(shared, made)).first;
    if (kept->second != made) clg_context_destroy(made);
    return kept->second;
}

template <typename Dtype>
void locate(caffe::Blob<Dtype> *blob, bool gradient, bool reads, Place place, clg_buffer *buffer) {
    if (place == Place::host) {
        locate_on_host(blob, gradient, reads, buffer);
        return;
    }
    if (reads)
        point_to(gradient ? blob->gpu_diff() : blob->gpu_data(), sizeof(Dtype), buffer);
    else
        point_to(gradient ? blob->mutable_gpu_diff() : blob->mutable_gpu_data(), sizeof(Dtype), buffer);
    buffer->bytes = static_cast<uint64_t>(blob->count()) * sizeof(Dtype);
}

// The branch pools over any number of axes, gave a number that is stock Caffe's `round_mode` to its `dilation`, and
// divides a Euclidean loss by the elements of all examples.
void adapt(caffe::LayerParameter *parameters) {
    if (parameters->has_pooling_param()) {
        caffe::PoolingParameter *pooling = parameters->mutable_pooling_param();
        expect(pooling->axis() == 1, "[pool] got an axis of the OpenCL branch's that is not 1, expected 1");
        for (int i = 0; i < pooling->dilation_size(); i++)
            expect(pooling->dilation(i) == 1, "[pool] got a dilation of the OpenCL branch's, expected none");
        expect(pooling->kernel_size_size() <= 2 && pooling->stride_size() <= 2 && pooling->pad_size() <= 2,
               "[pool] got more than 2 spatial axes, expected 2");
        pooling->clear_dilation();
        pooling->clear_axis();
        if (pooling->kernel_size_size() == 2) {
            pooling->set_kernel_h(pooling->kernel_size(0));
            pooling->set_kernel_w(pooling->kernel_size(1));
            pooling->clear_kernel_size();
        }
        if (pooling->stride_size() == 2) {
            pooling->set_stride_h(pooling->stride(0));
            pooling->set_stride_w(pooling->stride(1));
            pooling->clear_stride();
        }
        if (pooling->pad_size() == 2) {
            pooling->set_pad_h(pooling->pad(0));
            pooling->set_pad_w(pooling->pad(1));
            pooling->clear_pad();
        }
    }
    expect(parameters->convolution_param().fuse_type() == caffe::ConvolutionParameter::UNFUSED,
           "[conv] got a fuse_type of the OpenCL branch's, expected UNFUSED");
    expect(parameters->lrn_param().fuse_type() == caffe::LRNParameter::UNFUSED,
           "[lrn] got a fuse_type of the OpenCL branch's, expected UNFUSED");
    expect(!parameters->batch_norm_param().fused_relu(),
           "[batchnorm] got fused_relu of the OpenCL branch's, expected false");
    expect(parameters->dropout_param().scale_train(), "[dropout] got scale_train false, expected true");
    if (parameters->type() == "EuclideanLoss" || parameters->type() == "OclEuclideanLoss") {  // prototxt/marks.py
        caffe::PythonParameter *python = parameters->mutable_python_param();
        python->set_param_str(python->param_str() + "\n# clgraft mean of elements");
    }
}

template <typename Dtype>
void ServedLayer<Dtype>::Forward_gpu(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top) {
    forward(bottom, top, place_of(this->device_));
}

template <typename Dtype>
void ServedLayer<Dtype>::Backward_gpu(const Blobs<Dtype> &top, const std::vector<bool> &propagate_down,
                                      const Blobs<Dtype> &bottom) {
    backward(top, propagate_down, bottom, place_of(this->device_));
}

template void locate<float>(caffe::Blob<float> *, bool, bool, Place, clg_buffer *);
template void ServedLayer<float>::Forward_gpu(const Blobs<float> &, const Blobs<float> &);
template void ServedLayer<float>::Backward_gpu(const Blobs<float> &, const std::vector<bool> &, const Blobs<float> &);
CLGRAFT_DOUBLE(template void locate<double>(caffe::Blob<double> *, bool, bool, Place, clg_buffer *);)
CLGRAFT_DOUBLE(template void ServedLayer<double>::Forward_gpu(const Blobs<double> &, const Blobs<double> &);)
CLGRAFT_DOUBLE(template void ServedLayer<double>::Backward_gpu(const Blobs<double> &, const std::vector<bool> &,
                                                               const Blobs<double> &);)

}  // namespace clgraft_caffe
