"""Graphs that several tests use."""

from __future__ import annotations

import numpy as np

from clgraft.core.graph import Graph, GraphBuilder

EPS = {"eps": 1e-3}


def small_net(training: bool = False, batch: int = 2, size: int = 9) -> Graph:
    """Return two convolutions with batch norm, a shortcut, pooling, and a dense layer with a softmax loss."""
    on, pixels, n = GraphBuilder(), size * size, batch
    x = on.input("x", (n, 3, size, size))

    def norm(value: str, name: str, channels: int) -> str:
        shape = (channels,)
        read = [value, on.input(f"{name}.gamma", shape), on.input(f"{name}.beta", shape)]
        if training:
            found, mean, var = on.add(f"batchnorm forward_training n{n} c{channels} s{pixels}", *read, scalars=EPS)
            states = [on.state(f"{name}.{word}", shape) for word in ("mean", "var")]
            numbers = {"keep": 0.9, "add_mean": 0.1, "add_var": 0.1}
            on.add(f"batchnorm update_statistics n{n} c{channels} s{pixels}", mean, var, *states, scalars=numbers)
            return found
        read += [on.input(f"{name}.{word}", shape) for word in ("mean", "var")]
        return on.add(f"batchnorm forward_inference n{n} c{channels} s{pixels}", *read, scalars=EPS)[0]

    shape = f"[{n},8,{size},{size}]"
    conv = f"conv forward n{n} ih{size} iw{size} oc8 kh3 kw3 ph1 pw1"
    (a,) = on.add(f"{conv} ic3", x, on.input("w0", (8, 3, 3, 3)))
    (a,) = on.add(f"pointwise x0{shape} : y0 = x0 > 0 ? x0 : 0;", norm(a, "n0", 8))
    (b,) = on.add(f"{conv} ic8", a, on.input("w1", (8, 8, 3, 3)))
    (c,) = on.add(f"pointwise x0{shape} x1{shape} : y0 = x0 + x1;", norm(b, "n1", 8), a)
    (c,) = on.add(f"pointwise x0{shape} : y0 = tanh(x0);", c)
    (p,) = on.add(f"pool forward max n{n} c8 ih{size} iw{size} kh3 kw3 sh2 sw2", c)
    features = 8 * ((size - 3) // 2 + 1) ** 2
    (y,) = on.add(f"dense forward n{n} i{features} o5 b1", p, on.input("w2", (5, features)), on.input("b2", (5,)))
    return on.graph(y)


def sample(graph: Graph, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random inputs and states of a graph; variances and scales are positive."""
    found = {}
    for value in (*graph.inputs, *graph.states):
        if value.name.endswith(("gamma", "var")):
            array = rng.uniform(0.5, 1.5, value.shape)
        else:
            array = rng.standard_normal(value.shape)
        found[value.name] = array.astype(value.dtype)
    return found
