"""Groups of processes that train one model together, and the processes themselves.

`TorchGroup` is the group that a program has begun with ``torch.distributed.init_process_group("gloo")``, `MpiGroup`
that of ``mpirun``. `clgraft.core.model.groups` says what a group is.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.core.errors import ClgraftError
from clgraft.plugins.plugin import PluginError

PATIENCE = 10.0  # seconds that the first process waits for the others to end
FORWARDED = 0.5  # seconds in which mpirun passes on what a process that fails has printed
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
INTERFACE = "GLOO_SOCKET_IFNAME"  # gloo's own variable
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")  # where mpirun of MPICH and Open MPI leaves the number of processes
Job = Callable[..., int]


class TorchGroup:
    """The processes of torch.distributed's default group, whose backend is ``gloo``.

    Raises
    ------
    PluginError
        If there is no such group.
    """

    def __init__(self) -> None:
        try:
            import torch
            import torch.distributed as distributed
        except ImportError as error:
            raise PluginError(
                f"[group] got no PyTorch, expected it for processes that train together: {error}"
            ) from None
        if not distributed.is_available() or not distributed.is_initialized():
            raise PluginError("[group] got no group of torch.distributed, expected init_process_group('gloo') before")
        if "gloo" not in str(distributed.get_backend()):
            raise PluginError(
                f"[group] got backend {distributed.get_backend()!r}, expected gloo: arrays are on the host"
            )
        self._torch, self._distributed = torch, distributed
        self.rank, self.size = int(distributed.get_rank()), int(distributed.get_world_size())

    def sum(self, array: np.ndarray) -> None:
        """Replace an array by the sum of those of all processes."""
        self._distributed.all_reduce(self._torch.from_numpy(array))

    def broadcast(self, array: np.ndarray) -> None:
        """Replace an array by that of the first process."""
        self._distributed.broadcast(self._torch.from_numpy(array), 0)


class MpiGroup:
    """The processes of ``mpirun``, through mpi4py.

    Raises
    ------
    PluginError
        If mpi4py is not installed.
    """

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise PluginError(f"[group] got no mpi4py, expected it (pip install mpi4py): {error}") from None
        self._mpi, self._all = MPI, MPI.COMM_WORLD
        self.rank, self.size = int(self._all.Get_rank()), int(self._all.Get_size())

    def sum(self, array: np.ndarray) -> None:
        """Replace an array by the sum of those of all processes."""
        self._all.Allreduce(self._mpi.IN_PLACE, array)

    def broadcast(self, array: np.ndarray) -> None:
        """Replace an array by that of the first process."""
        self._all.Bcast(array, 0)

    def abort(self) -> None:
        """End all processes, which would wait for this one."""
        self._all.Abort(1)


def run_together(job: Job, devices: Sequence[str], *arguments: Any) -> int:
    """Run a job on several devices, one process each, and return the exit status of the first one.

    The processes are those of mpirun where it has begun this one, else new ones, which exchange through gloo.

    Parameters
    ----------
    job : callable
        A function of a module: gets a device, a group and the arguments, and returns an exit status.
    devices : sequence of str
    *arguments
        What other processes can be sent.

    Raises
    ------
    PluginError
        If neither PyTorch nor a group of mpirun of that size is there.
    """
    if _by_mpirun() or not _has_gloo():
        return _run_by_mpi(job, devices, arguments)
    with tempfile.TemporaryDirectory(prefix="clgraft") as folder, _others(job, devices, folder, arguments):
        return _run(job, devices, 0, folder, arguments)


def _by_mpirun() -> bool:
    """Return whether mpirun has begun several processes, of which this is one."""
    counts = [os.environ.get(name, "") for name in SIZES]
    return any(count.isdigit() and int(count) > 1 for count in counts)


def _has_gloo() -> bool:
    try:
        import torch.distributed as distributed
    except ImportError:
        return False
    return bool(distributed.is_available())


def _run_by_mpi(job: Job, devices: Sequence[str], arguments: Sequence[Any]) -> int:
    """Run a job in a process of mpirun; one that fails ends all of them."""
    group = _of_mpi(len(devices))
    try:
        return job(devices[group.rank], group, *arguments)
    except BaseException as error:
        if isinstance(error, ClgraftError):
            print(f"clgraft, process {group.rank}: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        sys.stderr.flush()
        time.sleep(FORWARDED)
        group.abort()
        raise


def _of_mpi(count: int) -> MpiGroup:
    try:
        group = MpiGroup()
    except PluginError:
        group = None
    if group is None or group.size != count:
        raise PluginError(
            f"[train] got {count} devices, but no PyTorch, expected it: pip install torch, or mpi4py and"
            f" mpirun -n {count} clgraft train ..."
        )
    return group


@contextmanager
def _others(job: Job, devices: Sequence[str], folder: str, arguments: Sequence[Any]) -> Iterator[None]:
    """Have all processes but the first one while the context lasts."""
    spawned = multiprocessing.get_context("spawn")
    processes = [
        spawned.Process(target=_follow, args=(job, tuple(devices), rank, folder, tuple(arguments)), daemon=True)
        for rank in range(1, len(devices))
    ]
    for process in processes:
        process.start()
    try:
        yield
        for process in processes:
            process.join(PATIENCE)
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
                process.join()
    failed = [process.exitcode for process in processes if process.exitcode]
    if failed:
        raise PluginError(f"[train] got {len(failed)} of {len(devices)} processes that ended with status {failed[0]}")


def _follow(job: Job, devices: Sequence[str], rank: int, folder: str, arguments: Sequence[Any]) -> None:
    """Be a process that is not the first one, which alone answers signals."""
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    try:
        status = _run(job, devices, rank, folder, arguments)
    except ClgraftError as error:
        print(f"clgraft, process {rank}: {error}", file=sys.stderr)
        status = 1
    except Exception:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)  # threads that wait for other processes do not keep this one


def _run(job: Job, devices: Sequence[str], rank: int, folder: str, arguments: Sequence[Any]) -> int:
    """Run a job in a new group of torch.distributed."""
    import torch.distributed as distributed

    os.environ.setdefault(INTERFACE, LOOPBACK)
    place = Path(folder, "rendezvous").as_uri()
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=len(devices))
    try:
        return job(devices[rank], TorchGroup(), *arguments)
    finally:
        distributed.destroy_process_group()
