"""Convolution as a product of matrices on CPU devices."""
