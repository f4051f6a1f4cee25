"""How long MXNet's OpenMP threads wait actively: clgraft's choice, unless the user has one."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from clgraft.mxnet_ops.engine import openmp


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, str(openmp.ROUNDS)),
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
    assert set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", shown)) == {str(openmp.ROUNDS)}
