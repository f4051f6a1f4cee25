"""The library of C++ layers: how it is made for the Caffe of a machine, and how a process loads it."""
