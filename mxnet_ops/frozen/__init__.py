"""Inference with frozen parameters of regions."""
