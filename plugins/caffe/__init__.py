"""Caffe's plugin: swap, check, tuning and benchmarks of prototxt files."""
