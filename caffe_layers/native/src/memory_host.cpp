// Blobs in host memory: plans work on it in place.
#include "memory.hpp"

#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "planner.hpp"

namespace clgraft_caffe {

clg_context context_on_host() {
    static std::atomic<clg_context> context(nullptr);
    if (context) return context;
    clg_context made = nullptr, none = nullptr;
    // under no lock: another thread may hold the interpreter's and wait for ours
    if (clg_context_create(nullptr, &made) != CLG_OK) throw Refusal(clg_last_error());
    if (!context.compare_exchange_strong(none, made)) clg_context_destroy(made);
    return context;
}

template <typename Dtype>
void locate_on_host(caffe::Blob<Dtype> *blob, bool gradient, bool reads, clg_buffer *buffer) {
    const Dtype *memory = reads ? (gradient ? blob->cpu_diff() : blob->cpu_data())
                                : (gradient ? blob->mutable_cpu_diff() : blob->mutable_cpu_data());
    buffer->kind = CLG_HOST;
    buffer->handle = const_cast<Dtype *>(memory);
    buffer->offset = 0;
    buffer->bytes = static_cast<uint64_t>(blob->count()) * sizeof(Dtype);
}

template <typename Dtype>
void hide(caffe::Blob<Dtype> *blob) {
    static std::mutex mutex;
    static std::vector<std::unique_ptr<std::vector<Dtype> > > &nothing = *new std::vector<std::unique_ptr<std::vector<Dtype> > >();
    const std::size_t count = blob->count();
    if (!count) return;
    std::lock_guard<std::mutex> lock(mutex);
    if (nothing.empty() || nothing.back()->size() < count)  // smaller ones stay: blobs use them
        nothing.emplace_back(new std::vector<Dtype>(count, std::numeric_limits<Dtype>::quiet_NaN()));
    blob->data()->set_cpu_data(nothing.back()->data());
    blob->diff()->set_cpu_data(nothing.back()->data());
}

template void hide<float>(caffe::Blob<float> *);
CLGRAFT_DOUBLE(template void hide<double>(caffe::Blob<double> *);)
template void locate_on_host<float>(caffe::Blob<float> *, bool, bool, clg_buffer *);
CLGRAFT_DOUBLE(template void locate_on_host<double>(caffe::Blob<double> *, bool, bool, clg_buffer *);)

}  // namespace clgraft_caffe
