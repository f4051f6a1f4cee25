"""The operators: a folder for each kind of problem, with its implementations."""
