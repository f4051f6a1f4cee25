"""Registers the backend's name: the entry point that `torch.compile(backend="clgraft")` finds imports this module.

PyTorch loads an entry point in each thread that asks for its name and then registers what it has got, which fails in
all threads but the first. A module is imported once, by one thread while the others wait: the name is registered here,
and PyTorch is given nothing to register.
"""

from __future__ import annotations

from torch._dynamo.backends.registry import register_backend

from clgraft.plugins.torch.backend import clgraft

register_backend(clgraft, name="clgraft")
NOTHING = None
