"""Mesa's drivers: rusticl, and clover before it, on whatever device they have."""

from __future__ import annotations

from typing import ClassVar

from clgraft.core.runtime.toolchains.base import Toolchain


class Mesa(Toolchain):
    """Mesa's drivers, whose compilers abort the process at a prefetch."""

    WORDS: ClassVar[tuple[str, ...]] = ("rusticl", "clover", "mesa")
    HAS_PREFETCH: ClassVar[bool] = False
