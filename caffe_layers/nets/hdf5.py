"""Caffe's files in HDF5: parameters of nets and states of solvers. They need h5py."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from clgraft.core.model import ModelError

MAGIC = b"\x89HDF\r\n\x1a\n"
DATA, HISTORY = "data", "history"


def _library(path: Any) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ModelError(f"[caffe] got {path} in HDF5, which needs h5py (pip install h5py): {error}") from None
    return h5py


def write_weights(path: str | os.PathLike[str], layers: Sequence[tuple[str, Sequence[np.ndarray]]]) -> None:
    """Write the blobs of layers, each under ``data/NAME/NUMBER``."""
    library = _library(path)
    with library.File(path, "w") as file:
        data = file.create_group(DATA)
        for name, blobs in layers:
            group = data.create_group(name)
            for number, blob in enumerate(blobs):
                group.create_dataset(str(number), data=blob)


def read_weights(path: str) -> list[tuple[str, tuple[np.ndarray, ...]]]:
    """Return the blobs of layers."""
    library = _library(path)
    try:
        with library.File(path, "r") as file:
            return [(str(name), _numbered(group)) for name, group in file[DATA].items()]
    except (OSError, KeyError, ValueError, AttributeError) as error:
        raise ModelError(f"[caffe] got {path}, which is no net's parameters in HDF5: {error}") from None


def write_state(
    path: str | os.PathLike[str], iteration: int, learned_net: str, history: Sequence[np.ndarray], step: int
) -> None:
    """Write the state of a solver."""
    library = _library(path)
    with library.File(path, "w") as file:
        file.create_dataset("iter", data=np.array([iteration], np.int32))
        file.create_dataset("learned_net", data=np.bytes_(learned_net.encode() + b"\0"))
        file.create_dataset("current_step", data=np.array([step], np.int32))
        group = file.create_group(HISTORY)
        for number, array in enumerate(history):
            group.create_dataset(str(number), data=array)


def read_state(path: str) -> tuple[int, str, list[np.ndarray], int]:
    """Return iteration, the file of the parameters, histories and the step of the learning rate."""
    library = _library(path)
    try:
        with library.File(path, "r") as file:
            learned = file["learned_net"][()] if "learned_net" in file else b""
            learned = learned if isinstance(learned, bytes) else np.asarray(learned).item()
            text = learned.decode() if isinstance(learned, bytes) else str(learned)
            steps = [int(np.asarray(file[name]).reshape(-1)[0]) for name in ("iter", "current_step")]
            return steps[0], text.rstrip("\0"), list(_numbered(file[HISTORY])), steps[1]
    except (OSError, KeyError, ValueError, AttributeError, IndexError) as error:
        raise ModelError(f"[solver] got {path}, which is no state of a solver in HDF5: {error}") from None


def _numbered(group: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(group[str(number)]) for number in range(len(group)))
