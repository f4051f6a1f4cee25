// The few names of Caffe's that these sources use, so that forks with other templates need one place to differ.
#ifndef CLGRAFT_CAFFE_TYPES_HPP
#define CLGRAFT_CAFFE_TYPES_HPP

#include <google/protobuf/stubs/common.h>

#include <string>
#include <vector>

#if GOOGLE_PROTOBUF_VERSION == 3012004
// Debian 11's caffe.pb.h was made by protobuf 3.12.3, which has two names that 3.12.4, its libprotobuf-dev, has not.
namespace google {
namespace protobuf {
typedef const std::string &ConstStringParam;
}
}  // namespace google
#define AuxiliaryParseTableField AuxillaryParseTableField
#endif

#include "caffe/blob.hpp"
#include "caffe/layer.hpp"
#include "caffe/layer_factory.hpp"

namespace clgraft_caffe {

template <typename Dtype>
using Layer = caffe::Layer<Dtype>;
template <typename Dtype>
using LayerPointer = boost::shared_ptr<caffe::Layer<Dtype> >;
template <typename Dtype>
using Registry = caffe::LayerRegistry<Dtype>;
template <typename Dtype>
using Blobs = std::vector<caffe::Blob<Dtype> *>;

}  // namespace clgraft_caffe

#endif
