"""Optimizers that update all parameters in one operation of MXNet's engine: `ocl_sgd`, `ocl_nag` and `ocl_adam`."""
