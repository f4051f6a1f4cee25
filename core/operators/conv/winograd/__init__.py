"""Winograd convolution on CPU devices."""
