"""The runtime: devices, drivers, programs, and plans that run through the C library."""
