"""Caffe's files without Caffe: nets, their parameters, and both together as graphs."""
