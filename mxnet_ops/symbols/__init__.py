"""MXNet's files without MXNet: symbols, parameters, and the nets that they make together.

Nothing in here, nor in what it imports, needs MXNet. `clgraft.mxnet_ops` itself does, and is imported before its
modules; `clgraft.load` goes around it.
"""
