"""What each of PyTorch's operators is in the core's problems: one file for each family, which fills the table."""

from clgraft.plugins.torch.lowering import attention, elements, layers, matrices, norms, resizing, shapes, sums

__all__ = ["attention", "elements", "layers", "matrices", "norms", "resizing", "shapes", "sums"]
