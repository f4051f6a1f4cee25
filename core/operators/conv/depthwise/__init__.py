"""Depthwise convolution, and convolution in groups of few channels."""
