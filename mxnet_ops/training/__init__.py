"""Training on a device with memory of its own: parameters, gradients and what optimizers keep stay there."""
