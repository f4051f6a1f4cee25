"""Caffe's solvers without Caffe: what `caffe train` does with a solver's prototxt."""
