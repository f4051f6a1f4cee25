"""``python -m clgraft.plugins.command_line``."""

from clgraft.plugins.command_line.main import command

command()
