"""Layers whose blobs and work belong to a program in C++: Python reads their parameters and says what they run."""
