"""The C++ layers in Caffe's OpenCL branch, on its own memory; these tests need a build that CAFFE_OPENCL_ROOT names."""
