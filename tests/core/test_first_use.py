"""What a first use costs: one program for a convolution or a pooling; and a second process compiles nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from clgraft import core
from clgraft.core import problem_sets, program_cache

DIRECTIONS = ("forward", "backward_data", "backward_filter")
START = """
import json, time
start = time.process_time()
from clgraft import core
from clgraft.core import problem_sets, program_cache
compiled = []
real = program_cache._compile
program_cache._compile = lambda *arguments: compiled.append(1) or real(*arguments)
context = core.context()
for text in problem_sets.lines("resnet50").values():
    for direction in ("forward", "backward_data", "backward_filter"):
        context.plan(core.parse(text).with_direction(direction))
print(json.dumps([len(compiled), time.process_time() - start]))
"""


@pytest.mark.parametrize("policy", ["cached", "off"])
@pytest.mark.parametrize("name", ["resnet50", "alexnet", "depthwise", "poolings"])
def test_an_untuned_problem_builds_at_most_one_program(name, policy, monkeypatch):
    monkeypatch.setenv("CLGRAFT_TUNE", policy)
    built = []
    real = program_cache.build
    monkeypatch.setattr(program_cache, "build", lambda *arguments: built.append(1) or real(*arguments))
    for text in problem_sets.lines(name).values():
        problem = core.parse(text)
        for direction in DIRECTIONS if problem.kind == "conv" else ("forward", "backward"):
            del built[:]
            core.Context.on(None).plan(problem.with_direction(direction))
            assert len(built) <= 1, problem.with_direction(direction)


def test_a_second_process_compiles_nothing():
    """The convolutions of a ResNet-50, gradients too: half a second of a processor, more of a busy one."""
    for _ in range(2):
        child = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
        compiled, seconds = json.loads(child.stdout)
    assert compiled == 0
    assert seconds < 5
