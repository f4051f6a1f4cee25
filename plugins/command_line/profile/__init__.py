"""``clgraft profile``: the time that each operator of a model takes."""
