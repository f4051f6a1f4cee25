// Where the values of blobs lie, as plans take them: on the host (memory_host.cpp), or on
// Caffe's device (device_*.cpp).
#ifndef CLGRAFT_CAFFE_MEMORY_HPP
#define CLGRAFT_CAFFE_MEMORY_HPP

#include "caffe_types.hpp"
#include "clgraft.h"

namespace clgraft_caffe {

// Whether a layer runs on the memory of Caffe's device (Forward_gpu) or on the host's.
enum class Place { host, device };

// A context for blobs in a place, made on its first use. Throws Refusal if there is none.
clg_context context_for(Place place, Device *device);
clg_context context_on_host();

// Sets kind, handle, offset and bytes of a buffer to a blob's values or to their gradient; they
// are written unless `reads`.
template <typename Dtype>
void locate(caffe::Blob<Dtype> *blob, bool gradient, bool reads, Place place, clg_buffer *buffer);
template <typename Dtype>
void locate_on_host(caffe::Blob<Dtype> *blob, bool gradient, bool reads, clg_buffer *buffer);

// Lets a blob that is not on the host, because it is inside of a region, read as NaN there without memory of its own.
template <typename Dtype>
void hide(caffe::Blob<Dtype> *blob);

// A blob's memory on the host, to be read and written there.
template <typename Dtype>
void *on_host(caffe::Blob<Dtype> *blob, bool gradient) {
    return gradient ? blob->mutable_cpu_diff() : blob->mutable_cpu_data();
}

}  // namespace clgraft_caffe

#endif
