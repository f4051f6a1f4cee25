#ifndef CLGRAFT_CAFFE_LIBRARY_HPP
#define CLGRAFT_CAFFE_LIBRARY_HPP

#include <string>

namespace clgraft_caffe {

// Caffe's own types that clgraft serves now, between commas.
const std::string &replaced_types();

}  // namespace clgraft_caffe

#endif
