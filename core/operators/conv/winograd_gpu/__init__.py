"""Winograd convolution on GPUs."""
