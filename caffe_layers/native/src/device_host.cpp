// Caffe on CUDA keeps blobs on a device that clgraft does not share: these layers work on the host then.
#include "layer.hpp"

namespace clgraft_caffe {

clg_context context_for(Place, Device *) { return context_on_host(); }

template <typename Dtype>
void locate(caffe::Blob<Dtype> *blob, bool gradient, bool reads, Place, clg_buffer *buffer) {
    locate_on_host(blob, gradient, reads, buffer);
}

void adapt(caffe::LayerParameter *) {}

template <typename Dtype>
void ServedLayer<Dtype>::Forward_gpu(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top) {
    forward(bottom, top, Place::host);
}

template <typename Dtype>
void ServedLayer<Dtype>::Backward_gpu(const Blobs<Dtype> &top, const std::vector<bool> &propagate_down,
                                      const Blobs<Dtype> &bottom) {
    backward(top, propagate_down, bottom, Place::host);
}

template void locate<float>(caffe::Blob<float> *, bool, bool, Place, clg_buffer *);
template void locate<double>(caffe::Blob<double> *, bool, bool, Place, clg_buffer *);
template void ServedLayer<float>::Forward_gpu(const Blobs<float> &, const Blobs<float> &);
template void ServedLayer<double>::Forward_gpu(const Blobs<double> &, const Blobs<double> &);
template void ServedLayer<float>::Backward_gpu(const Blobs<float> &, const std::vector<bool> &, const Blobs<float> &);
template void ServedLayer<double>::Backward_gpu(const Blobs<double> &, const std::vector<bool> &,
                                                const Blobs<double> &);

}  // namespace clgraft_caffe
