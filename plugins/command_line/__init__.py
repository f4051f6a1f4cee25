"""The command ``clgraft``."""

from clgraft.plugins.command_line.main import command, main

__all__ = ["command", "main"]
