"""Implementations planted among a convolution's own, to see what tuning makes of them."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from types import SimpleNamespace

from clgraft.core.errors import BuildError, Declined
from clgraft.core.operators.conv import direct
from clgraft.core.planning.launches import Launches

PROBLEM = "conv forward n2 ic3 ih9 iw11 oc4 kh3 kw3 ph1 pw1"


def right(problem, context, settings=None):
    return direct.plan(problem, context)


def slow(problem, context, settings=None):
    """Compute the same again and again; `times` is a setting."""
    times = int((settings or {}).get("times", 40))
    return Launches(direct.plan(problem, context).launches * times)


def half(problem, context, settings=None):
    """Write only half of the results."""
    launch = direct.plan(problem, context).launches[0]
    return Launches((replace(launch, global_size=(launch.global_size[0] // 2,)),))


def shifted(problem, context, settings=None):
    """Take the padding for the other end's: numbers of the right size, all of them wrong."""
    ends = tuple(b + e for b, e in zip(problem.pad_begin, problem.pad_end))
    return direct.plan(replace(problem, pad_begin=(0,) * problem.ndim, pad_end=ends), context)


def declining(problem, context, settings=None):
    raise Declined("is planted to decline")


def unbuildable(problem, context, settings=None):
    raise BuildError("[kernel] is planted not to build")


def raising(problem, context, settings=None):
    raise ZeroDivisionError("is planted to raise")


def hanging(problem, context, settings=None):
    time.sleep(600)


def crashing(problem, context, settings=None):
    os.abort()


def implementation(name, plan, *settings):
    """Make what stands in a list of implementations; with settings it has candidates."""
    made = SimpleNamespace(NAME=name, plan=plan)
    if settings:
        made.candidates = lambda problem, context: [{}, *settings]
    return made


def of_plants(*plans):
    """Make a list of implementations of plans, by their names, in front of the last resort."""
    return (*(implementation(plan.__name__, plan) for plan in plans), direct)
