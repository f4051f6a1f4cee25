"""MXNet's plugin: swap, check, tuning and benchmarks of symbol files."""
