"""Random inputs for models, by the shapes that they say or that a user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from clgraft.core.model.session import Session


def inputs(session: Session, shapes: Mapping[str, Sequence[int]] | None = None) -> dict[str, np.ndarray]:
    """Return random arrays for all inputs: normal numbers, or 0 and 1 for whole numbers and truth values.

    Parameters
    ----------
    session : Session
    shapes : mapping of str to sequence of int, optional
        Shapes of the inputs that the model does not fix.

    Raises
    ------
    ClgraftError
        If a shape is missing.
    """
    rng = np.random.default_rng(7)
    types = {port.name: port.dtype for port in session.inputs}
    found = {}
    for name, shape in session.shapes(shapes).items():
        real = types[name].startswith("float")
        found[name] = (rng.standard_normal(shape) if real else rng.integers(0, 2, shape)).astype(types[name])
    return found
