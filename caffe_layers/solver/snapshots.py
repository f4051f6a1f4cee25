"""Snapshots of solvers, ``.solverstate``: in the binary form, and in HDF5 where h5py is installed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from clgraft.caffe_layers.nets import hdf5
from clgraft.caffe_layers.nets.weights import MessageReader, blob_bytes, bytes_field, number_field
from clgraft.core.files import write_whole
from clgraft.core.model import ModelError, contents

ITERATION, LEARNED_NET, HISTORY, CURRENT_STEP = 1, 2, 3, 4  # numbers of fields
LOSS_SCALE = 16001  # clgraft's own, which Caffe keeps as an unknown field


@dataclass
class SolverState:
    """What a solver goes on from, besides the parameters.

    Attributes
    ----------
    iteration : int
    learned_net : str
        The file of the parameters.
    history : list of numpy.ndarray
        The optimizer's arrays: the first of every parameter, then the second of every parameter.
    current_step : int
        Of the learning rate.
    loss_scale : numpy.ndarray or None
        What the scale of losses goes on from in 16-bit training; None in files of Caffe's.
    """

    iteration: int = 0
    learned_net: str = ""
    history: list[np.ndarray] = field(default_factory=list)
    current_step: int = 0
    loss_scale: np.ndarray | None = None


def write_state(path: str | os.PathLike[str], state: SolverState) -> None:
    """Write a state, in HDF5 if the name ends with ``.h5``."""
    if str(path).endswith(".h5"):
        hdf5.write_state(path, state.iteration, state.learned_net, state.history, state.current_step, state.loss_scale)
        return
    parts = [number_field(ITERATION, state.iteration), bytes_field(LEARNED_NET, state.learned_net.encode())]
    parts += [bytes_field(HISTORY, blob_bytes("history", array)) for array in state.history]
    parts.append(number_field(CURRENT_STEP, state.current_step))
    if state.loss_scale is not None:
        parts.append(bytes_field(LOSS_SCALE, np.asarray(state.loss_scale, "<f8").tobytes()))
    write_whole(Path(path), b"".join(parts), 0o644)


def read_state(path: str | os.PathLike[str]) -> SolverState:
    """Read a state in either form.

    Raises
    ------
    ModelError
        If it cannot be read or is damaged.
    """
    name, data = contents("solver", os.fspath(path), "solverstate")
    if data.startswith(hdf5.MAGIC):
        return SolverState(*hdf5.read_state(name))
    reader, found = MessageReader(name, "a solverstate"), SolverState()
    for number, value in reader.fields(memoryview(data), "the state"):
        if number == ITERATION and isinstance(value, int):
            found.iteration = value
        elif number == CURRENT_STEP and isinstance(value, int):
            found.current_step = value
        elif number == LEARNED_NET and isinstance(value, memoryview):
            found.learned_net = reader.text(value)
        elif number == HISTORY:
            found.history.append(reader.blob(value, "history"))
        elif number == LOSS_SCALE and isinstance(value, memoryview) and len(value) % 8 == 0:
            found.loss_scale = np.frombuffer(value, "<f8")
    return found


def expect_histories(name: str, history: Sequence[np.ndarray], expected: int) -> None:
    """Raise `ModelError` unless there are as many arrays as a solver keeps."""
    if len(history) != expected:
        raise ModelError(f"[solver] got {name} with {len(history)} arrays of history, expected {expected}")
