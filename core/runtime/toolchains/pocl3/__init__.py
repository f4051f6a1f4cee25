"""PoCL 3: what only its compiler needs. Once nobody has it, remove this folder and its place in `TOOLCHAINS`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any, Callable

from clgraft.core.log import log
from clgraft.core.runtime import sources
from clgraft.core.runtime.toolchains.pocl import PoCL
from clgraft.core.runtime.toolchains.pocl3 import declarations, outline

VERSION = re.compile(r"\bpocl 3\.", re.I)


class PoCL3(PoCL):
    """PoCL 3, which reads a long header for every program, and compiles a kernel's body three times.

    Attributes
    ----------
    declares : bool
        Whether declarations of our own stand in for the header (`declarations.py`).
    outlines : bool
        Whether bodies become functions (`outline.py`), of kernels with vectors: these run in work-groups of one item.
    """

    def __init__(self, cl_device: Any) -> None:
        super().__init__(cl_device)
        self.declares = self.outlines = self.is_cpu

    @classmethod
    def serves(cls, platform: str, version: str) -> bool:
        """Return whether a platform is PoCL's of this version."""
        return super().serves(platform, version) and bool(VERSION.search(version))

    def _arranged(
        self, file: str, name: str, named: frozenset[str], macros: Mapping[str, Any], front: str
    ) -> tuple[str, tuple[str, ...]]:
        is_single = "VL" in macros and "SCALAR_ITEMS" not in macros
        text = (outline.outlined_source if self.outlines and is_single else sources.kernel_source)(file, name, named)
        if not self.declares:
            return front + text, ()
        return declarations.declarations(text, front, macros["STORAGE"]) + front + text, (declarations.WITHOUT_HEADER,)

    def build(self, cl_context: Any, source: str, options: tuple[str, ...], built: Callable[..., Any]) -> Any:
        """Return a built program; one that cannot do without the header is built with it."""
        import pyopencl as cl

        if declarations.WITHOUT_HEADER in options:
            with contextlib.suppress(cl.RuntimeError):
                return super().build(cl_context, source, options, built)
            options = tuple(option for option in options if option != declarations.WITHOUT_HEADER)
            log.info("a kernel calls functions that %s does not declare: built with PoCL's header", declarations.FILE)
        return super().build(cl_context, source, options, built)
