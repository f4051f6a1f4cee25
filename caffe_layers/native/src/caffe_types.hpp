// The few names of Caffe's that these sources use. Stock Caffe and its OpenCL branch differ here and in device_*.cpp.
#ifndef CLGRAFT_CAFFE_TYPES_HPP
#define CLGRAFT_CAFFE_TYPES_HPP

#include <memory>
#include <string>
#include <vector>

#include "caffe_names.h"  // in front of Caffe's own

#include "caffe/blob.hpp"
#include "caffe/layer.hpp"
#include "caffe/layer_factory.hpp"

#ifdef CAFFE_BACKEND_VPTR_HPP_  // of a header that only the OpenCL branch has
#define CLGRAFT_OPENCL_BRANCH
#endif

namespace clgraft_caffe {

using caffe::shared_ptr;  // boost's in stock Caffe, the standard library's in the branch

#ifdef CLGRAFT_OPENCL_BRANCH

// The branch knows layers by three types of numbers: of parameters, of bottoms and of tops.
template <typename Dtype>
using Layer = caffe::Layer<Dtype, Dtype, Dtype>;
template <typename Dtype>
using Registry = caffe::LayerRegistry<Dtype, Dtype, Dtype>;
typedef int_tp Int;  // of sizes and indices
typedef caffe::Device Device;

// The branch's blobs have at least one axis: what is a number in stock Caffe is an array of one there.
inline std::vector<Int> as_blob(const std::vector<Int> &shape) {
    return shape.empty() ? std::vector<Int>(1, 1) : shape;
}

template <typename Dtype>
Device *device_of(Layer<Dtype> *layer) {
    return layer->get_device();
}
template <typename Dtype>
caffe::Blob<Dtype> *new_blob(const std::vector<Int> &shape, Device *device) {
    return new caffe::Blob<Dtype>(shape, device);
}

#else

template <typename Dtype>
using Layer = caffe::Layer<Dtype>;
template <typename Dtype>
using Registry = caffe::LayerRegistry<Dtype>;
typedef int Int;
struct Device;  // a layer has none of its own

inline std::vector<Int> as_blob(const std::vector<Int> &shape) { return shape; }

template <typename Dtype>
Device *device_of(Layer<Dtype> *) {
    return nullptr;
}
template <typename Dtype>
caffe::Blob<Dtype> *new_blob(const std::vector<Int> &shape, Device *) {
    return new caffe::Blob<Dtype>(shape);
}

#endif

// A line for Caffe's layers of double precision: the branch can be built without them.
#if defined(CLGRAFT_OPENCL_BRANCH) && !defined(USE_DOUBLE)
#define CLGRAFT_DOUBLE(line)
#else
#define CLGRAFT_DOUBLE(line) line
#endif

template <typename Dtype>
using LayerPointer = shared_ptr<Layer<Dtype>>;
template <typename Dtype>
using Blobs = std::vector<caffe::Blob<Dtype> *>;

}  // namespace clgraft_caffe

#endif
