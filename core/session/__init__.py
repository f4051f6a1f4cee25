"""The public face of devices: contexts that plan problems, one per process and device, and callers in C."""
