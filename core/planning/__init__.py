"""Planning: from a problem to kernel launches, by the first implementation that serves it."""
