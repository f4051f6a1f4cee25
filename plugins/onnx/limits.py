"""How much a model may ask of the host while it is loaded and lowered: ``CLGRAFT_ONNX_LIMITS``."""

from __future__ import annotations

from dataclasses import dataclass

from clgraft.core import settings
from clgraft.core.errors import ArgumentError
from clgraft.plugins.onnx.errors import OnnxError

VARIABLE = settings.ONNX_LIMITS.name
MEANING = {
    "nodes": "nodes after functions and loops are expanded",
    "bytes": "bytes of values that are computed on the host",
    "operations": "operations on the host",
    "turns": "turns of loops",
}


@dataclass(frozen=True)
class Limits:
    """The most that one model may need, all its nodes together.

    Attributes
    ----------
    nodes : int
        Nodes, with functions in place of their calls and loops unrolled.
    bytes : int
        Bytes of the values that are computed on the host, besides the model's own tensors.
    operations : int
        Operations on elements, for values that are computed on the host.
    turns : int
        Turns of loops and time steps of recurrent layers.
    """

    nodes: int = 100_000
    bytes: int = 4 * 2**30
    operations: int = 4 * 10**9
    turns: int = 10_000


def limits() -> Limits:
    """Return the limits: the defaults, or those in ``CLGRAFT_ONNX_LIMITS``, such as ``nodes=1e6,bytes=8e9``.

    Raises
    ------
    OnnxError
        If the variable holds something else.
    """
    try:
        return Limits(**settings.ONNX_LIMITS.value())
    except ArgumentError as error:
        raise OnnxError(str(error)) from None


class Budget:
    """Counts what a model has needed.

    Parameters
    ----------
    most : Limits
    """

    def __init__(self, most: Limits) -> None:
        self._most = most
        self._spent = dict.fromkeys(MEANING, 0)

    def expect(self, what: str, amount: float, reason: object) -> None:
        """Check that the limit leaves an amount, before it is used.

        Parameters
        ----------
        what : str
            A field of `Limits`.
        amount : int or float
        reason : object
            What needs it; part of the error.

        Raises
        ------
        OnnxError
            If the limit leaves less.
        """
        most = getattr(self._most, what)
        total = self._spent[what] + amount
        if not total <= most:  # NaN neither
            raise OnnxError(
                f"[onnx] got {reason}, with which the model needs {total:.0f} {MEANING[what]}, expected at most {most};"
                f" {VARIABLE}={what}={max(2 * most, 1.01 * total):.2e} allows more"
            )

    def spend(self, what: str, amount: float, reason: object) -> None:
        """Count an amount, which the limit has to leave."""
        self.expect(what, amount, reason)
        self._spent[what] += int(amount)
