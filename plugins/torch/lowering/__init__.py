"""What each of PyTorch's operators is in the core's problems: one file for each family."""

from clgraft.plugins.torch.lowering import elements, layers, matrices, norms, shapes, sums  # each fills the table

__all__ = ["elements", "layers", "matrices", "norms", "shapes", "sums"]
