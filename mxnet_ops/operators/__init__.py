"""The operators, one file for each family."""
