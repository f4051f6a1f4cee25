"""Which product of matrices each direction of a dense layer is, with or without transposed weights."""

from __future__ import annotations

from dataclasses import dataclass

from clgraft.core.operators.dense.problem import DenseProblem


@dataclass(frozen=True)
class DenseProduct:
    """The result c of a product of row-major matrices a and b, named by the problem's arguments.

    Attributes
    ----------
    form : str
        ``nt``: c[r][s] = sum over t of a[r][t] * b[s][t]; ``nn``: c[r][t] = sum over s of a[r][s] * b[s][t];
        ``tn``: c[s][t] = sum over r of a[r][s] * b[r][t]. The long matrix of weights is b or, in ``tn``, c.
    a, b, c : str
        Arguments.
    r, s, t : int
        The sizes: r is the batch; s counts the weights' rows and t their columns.
    """

    form: str
    a: str
    b: str
    c: str
    r: int
    s: int
    t: int


def product_of(problem: DenseProblem) -> DenseProduct:
    """Return the product that computes a direction other than backward_bias."""
    batch, inputs, outputs = problem.batch, problem.inputs, problem.outputs
    rows, columns = (inputs, outputs) if problem.transposed else (outputs, inputs)
    # a meets the rows of w, b its columns
    if problem.direction == "backward_weight":
        a, b = ("x", "dy") if problem.transposed else ("dy", "x")
        return DenseProduct("tn", a, b, "dw", batch, rows, columns)
    source, target = ("x", "y") if problem.direction == "forward" else ("dy", "dx")
    along_columns = (problem.direction == "forward") != problem.transposed
    return DenseProduct("nt" if along_columns else "nn", source, "w", target, batch, rows, columns)
