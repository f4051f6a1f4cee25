"""How long MXNet's OpenMP threads wait actively: clgraft's choice, unless the user has one."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from clgraft.mxnet_ops.engine import openmp


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, str(openmp.rounds(os.cpu_count()))),
        ({"GOMP_SPINCOUNT": "77"}, "77"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_a_users_choice_stays(monkeypatch, given, expected):
    for name in openmp.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    openmp.let_threads_sleep()
    assert os.environ.get("GOMP_SPINCOUNT") == expected
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)


def test_mxnets_library_reads_it():
    environment = {name: value for name, value in os.environ.items() if name not in openmp.VARIABLES}
    environment["OMP_DISPLAY_ENV"] = "verbose"
    command = [sys.executable, "-c", "import clgraft.mxnet_ops"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    if "GOMP_" not in shown:
        pytest.skip("MXNet uses another OpenMP library")
    assert set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", shown)) == {str(openmp.rounds(os.cpu_count()))}


COMPUTE = """
import clgraft.mxnet_ops, ctypes, mxnet
x = mxnet.nd.ones((1, 4, 9, 9))
mxnet.nd.Convolution(x, mxnet.nd.ones((4, 4, 3, 3)), kernel=(3, 3), num_filter=4, no_bias=True).wait_to_read()
print(ctypes.CDLL("libgomp.so.1").omp_get_max_threads())
"""


def printed_number(text, **given):
    """Return the number that a program prints in an environment without numbers of threads but those given."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_NUM", "MKL_NUM"))}
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, env={**environment, **given}, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize(
    "first, given, expected",
    [
        ('ctypes.CDLL("libgomp.so.1").omp_set_num_threads(7)', {}, 7),  # as another library of the process may do
        ('ctypes.CDLL("libgomp.so.1")', {}, len(os.sched_getaffinity(0))),
        ("", {}, len(os.sched_getaffinity(0))),  # MXNet loads the library
        ("", {"OMP_NUM_THREADS": "5"}, 5),
    ],
)
def test_openmps_number_of_threads_stays(first, given, expected):
    assert printed_number(f"import ctypes\n{first}\n{COMPUTE}", **given) == expected


@pytest.mark.parametrize("order", ["torch, clgraft.mxnet_ops", "clgraft.mxnet_ops, torch"])
def test_pytorch_keeps_its_threads(order):
    if not all(importlib.util.find_spec(name) for name in ("torch", "mxnet")):
        pytest.skip("needs PyTorch next to MXNet")
    ask = "import torch\nprint(torch.get_num_threads())"
    assert printed_number(f"import {order}\n{ask}") == printed_number(ask)
