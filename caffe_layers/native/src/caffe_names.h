// Names that Caffe's headers expect of protobuf, for clgraft's sources and for programs, in front of these headers.
#if !defined(CLGRAFT_CAFFE_NAMES_H) && defined(__cplusplus)
#define CLGRAFT_CAFFE_NAMES_H

#include <google/protobuf/stubs/common.h>

#include <string>

#if GOOGLE_PROTOBUF_VERSION == 3012004
// Debian 11's caffe.pb.h was made by protobuf 3.12.3, which has two names that 3.12.4, its libprotobuf-dev, has not.
namespace google {
namespace protobuf {
typedef const std::string &ConstStringParam;
}
}  // namespace google
#define AuxiliaryParseTableField AuxillaryParseTableField
#endif

#endif
