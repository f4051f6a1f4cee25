"""Plans with something of a toolchain switched on and off."""

from __future__ import annotations

import numpy as np

from clgraft import core


def expect_the_same_bits(text: str, rng: np.random.Generator, switch: str, on: bool) -> None:
    """Run a problem of one output in a context of its own with a switch and without it, and compare the results.

    Parameters
    ----------
    text : str
        The problem.
    rng : numpy.random.Generator
    switch : str
        An attribute of the context's toolchain.
    on : bool
        What the switch is where it is not off: False on devices that are not concerned.
    """
    problem = core.parse(text)
    arrays = problem.sample(rng)
    output = problem.arguments()[-1]
    results = []
    for value in (on, False):
        context = core.Context.on(None)
        setattr(context.toolchain, switch, value)
        result = np.full(output.shape, np.nan, output.dtype)
        context.plan(problem).run(**arrays, **{output.name: result})
        results.append(result)
    assert not np.isnan(results[0]).any()
    assert np.array_equal(*results)
