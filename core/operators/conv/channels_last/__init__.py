"""Convolution in channels last without transpositions."""
