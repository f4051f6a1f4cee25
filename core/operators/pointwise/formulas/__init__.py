"""Formulas for pointwise problems: activations, arithmetic of tensors, norms."""
