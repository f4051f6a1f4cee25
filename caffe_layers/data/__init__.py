"""Data for nets without Caffe: what Caffe's data layers read, in batches."""
