"""The command `clgraft warm`."""
