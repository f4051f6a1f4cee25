// Caffe on CUDA keeps blobs on a device that clgraft does not share: these layers work on the host then.
#include "layer.hpp"

namespace clgraft_caffe {

template <typename Dtype>
void ServedLayer<Dtype>::Forward_gpu(const Blobs<Dtype> &bottom, const Blobs<Dtype> &top) {
    forward(bottom, top, Place::host);
}

template <typename Dtype>
void ServedLayer<Dtype>::Backward_gpu(const Blobs<Dtype> &top, const std::vector<bool> &propagate_down, const Blobs<Dtype> &bottom) {
    backward(top, propagate_down, bottom, Place::host);
}

template void ServedLayer<float>::Forward_gpu(const Blobs<float> &, const Blobs<float> &);
template void ServedLayer<double>::Forward_gpu(const Blobs<double> &, const Blobs<double> &);
template void ServedLayer<float>::Backward_gpu(const Blobs<float> &, const std::vector<bool> &, const Blobs<float> &);
template void ServedLayer<double>::Backward_gpu(const Blobs<double> &, const std::vector<bool> &, const Blobs<double> &);

}  // namespace clgraft_caffe
