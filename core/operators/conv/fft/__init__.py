"""Convolution by Fourier transforms of tiles."""
