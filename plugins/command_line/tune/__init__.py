"""``clgraft tune``: searches the fastest choice for problems, sets of them, or all that a net holds."""
