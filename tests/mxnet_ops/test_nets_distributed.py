"""Several processes: a parameter server and two workers train a swapped net as one process does on all images."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

WORKERS, STEPS, BATCH = 2, 4, 6
SECONDS = 60

PROGRAM = """
import sys
import clgraft.mxnet_ops as ops
import mxnet as mx  # a scheduler or a server stays in here until the workers are done
import numpy as np
from mxnet import gluon

data, out, ours = sys.argv[1], sys.argv[2], sys.argv[3] == "ours"
store = mx.kv.create(sys.argv[4])
numbers = np.load(data)
images, labels = numbers["images"], numbers["labels"]
total = images.shape[1]
images, labels = images[:, store.rank :: store.num_workers], labels[:, store.rank :: store.num_workers]

net = gluon.nn.HybridSequential(prefix="net_")
with net.name_scope():
    net.add(gluon.nn.Conv2D(6, 3, padding=1), gluon.nn.Activation("tanh"), gluon.nn.MaxPool2D())
    net.add(gluon.nn.Conv2D(6, 3, groups=6), gluon.nn.LeakyReLU(0.1), gluon.nn.Dense(3))
mx.random.seed(9)
net.initialize(mx.init.Xavier())
net(mx.nd.array(images[0]))
if ours:
    ops.swap_block(net)
net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=store)
loss = gluon.loss.SoftmaxCrossEntropyLoss()
for x, y in zip(images, labels):
    with mx.autograd.record():
        value = loss(net(mx.nd.array(x)), mx.nd.array(y))
    value.backward()
    trainer.step(total)
mx.nd.waitall()
net.save_parameters(out + f".{store.rank}.params")
"""


def start(arguments: list[str], role: str | None = None, port: int = 0) -> subprocess.Popen:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DMLC_", "PS_"))}
    if role:
        environment.update(
            DMLC_ROLE=role,
            DMLC_PS_ROOT_URI="127.0.0.1",
            DMLC_PS_ROOT_PORT=str(port),
            DMLC_NUM_SERVER="1",
            DMLC_NUM_WORKER=str(WORKERS),
            DMLC_NODE_HOST="127.0.0.1",
        )
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(processes: list[subprocess.Popen]) -> None:
    """Wait for all of them, and leave none running."""
    end, failures = time.monotonic() + SECONDS, []
    try:
        for process in processes:
            try:
                _, errors = process.communicate(timeout=max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                failures.append(f"not done after {SECONDS} s: {process.args[3:]}")
                break
            if process.returncode:
                failures.append(errors)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert not failures, failures


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def data(tmp_path, rng):
    path = str(tmp_path / "data.npz")
    images = rng.standard_normal((STEPS, BATCH, 2, 9, 8)).astype("float32")
    np.savez(path, images=images, labels=rng.integers(0, 3, (STEPS, BATCH)).astype("float32"))
    return path


def test_two_workers_and_a_server_train_as_one_process_on_all_images(data, tmp_path):
    import mxnet as mx

    assert mx.runtime.Features().is_enabled("DIST_KVSTORE")
    joint = [start([data, str(tmp_path / kind), kind, "local"]) for kind in ("ours", "native")]
    finish(joint)
    port, arguments = free_port(), [data, str(tmp_path / "parts"), "ours", "dist_sync"]
    finish([start(arguments, role, port) for role in ("worker", "worker", "server", "scheduler")])
    native = mx.nd.load(str(tmp_path / "native.0.params"))
    for file in ("ours.0", "parts.0", "parts.1"):
        found = mx.nd.load(str(tmp_path / f"{file}.params"))
        assert set(found) == set(native)
        for name, value in native.items():
            right = value.asnumpy()
            error = np.abs(found[name].asnumpy() - right).max()
            assert error <= 2e-5 * max(np.abs(right).max(), 0.1), (file, name, error)
    one, other = (mx.nd.load(str(tmp_path / f"parts.{rank}.params")) for rank in range(WORKERS))
    assert all((one[name].asnumpy() == other[name].asnumpy()).all() for name in one)
