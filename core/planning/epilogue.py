"""What follows a convolution or a dense layer, computed where its kernel stores the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clgraft.core.planning.launches import Buffer, Scalar

# an extra input has one element for each channel, or for each element of the result
CHANNEL, WHOLE = "channel", "whole"


@dataclass(frozen=True)
class Epilogue:
    """A program per element of a result; ``kernels/common/epilogue.cl`` compiles it into a kernel.

    Attributes
    ----------
    text : str
        C text that computes y0 from x0, the element, and x1, x2, ..., the extra inputs.
    extras : tuple of str
        `CHANNEL` or `WHOLE` for each of x1, x2, ...
    scalars : tuple of str
        Names that every run gives.
    """

    text: str
    extras: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()

    def defines(self) -> dict[str, str]:
        """Return the kernel's macros."""

        def listed(kind: str) -> str:
            return " ".join(f"F({i})" for i, extra in enumerate(self.extras, 1) if extra == kind)

        return {
            "EPILOGUE": self.text,
            "CHANNEL_EXTRAS(F)": listed(CHANNEL),
            "WHOLE_EXTRAS(F)": listed(WHOLE),
            "EPILOGUE_SCALARS(F)": " ".join(f"F({name})" for name in self.scalars),
        }

    def arguments(self, dtype: str) -> tuple[Any, ...]:
        """Return what EPILOGUE_PARAMETERS declares, the last parameters of a kernel."""
        real = "float64" if dtype == "float64" else "float32"
        kinds = (CHANNEL, WHOLE)
        extras = (Buffer(f"x{i}") for kind in kinds for i, extra in enumerate(self.extras, 1) if extra == kind)
        return (*extras, *(Scalar(name, real) for name in self.scalars))


def epilogue_defines(epilogue: Epilogue | None) -> dict[str, str]:
    """Return the macros of an epilogue; none without one."""
    return epilogue.defines() if epilogue else {}


def epilogue_arguments(epilogue: Epilogue | None, dtype: str) -> tuple[Any, ...]:
    """Return the last arguments of a kernel with an epilogue; none without one."""
    return epilogue.arguments(dtype) if epilogue else ()
