"""Formulas of losses, norms and reductions as pointwise problems and as texts."""
