"""`DistributedDataParallel`: two processes on one machine train a compiled net to the weights of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.plugins.torch import train_in_parallel  # noqa: E402
from tests.plugins.torch.test_backend import difference  # noqa: E402

if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no processes in parallel", allow_module_level=True)


def test_two_processes_train_to_the_weights_of_one(tmp_path, caplog):
    caplog.set_level("WARNING")
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "POCL_CACHE_DIR": str(tmp_path / "pocl"),
        "OMP_NUM_THREADS": "1",
    }
    script = Path(train_in_parallel.__file__)
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), "2", str(tmp_path)],
            env={**environment, "POCL_CACHE_DIR": str(tmp_path / f"pocl{rank}")},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=900)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    exact = train_in_parallel.build().double()
    before = {name: value.clone() for name, value in exact.state_dict().items()}
    train_in_parallel.train(exact, exact, 0, train_in_parallel.BATCH, torch.float64)
    for name, value in exact.state_dict().items():
        assert torch.equal(first[name], second[name])
        assert difference(first[name], value) < 1e-5 and not torch.equal(before[name], value)
