"""Convolution as a product of matrices on GPUs."""
