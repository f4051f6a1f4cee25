"""``clgraft check``: results and gradients on the user's device against references."""
