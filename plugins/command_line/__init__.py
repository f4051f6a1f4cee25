"""The command ``clgraft``."""

from clgraft.plugins.command_line.main import main

__all__ = ["main"]
