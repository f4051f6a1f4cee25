"""Benchmarks: our operators and whole nets against the frameworks' own, in one process, in turn."""
