"""AMD's driver for GPUs."""

from __future__ import annotations

from typing import ClassVar

from clgraft.core.runtime.toolchains.base import Toolchain


class AMD(Toolchain):
    """AMD's driver, which has not been measured: its compiler takes prefetches."""

    WORDS: ClassVar[tuple[str, ...]] = ("amd",)
    HAS_PREFETCH: ClassVar[bool] = True
