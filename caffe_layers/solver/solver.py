"""Caffe's solver: the loop of training, with test nets, snapshots and the log."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.caffe_layers.data.prefetch import Feed
from clgraft.caffe_layers.data.sources import Batch
from clgraft.caffe_layers.nets import hdf5
from clgraft.caffe_layers.nets.net import TEST, TRAIN, CaffeNet
from clgraft.caffe_layers.nets.weights import LayerWeights, read_caffemodel
from clgraft.caffe_layers.solver import policies
from clgraft.caffe_layers.solver.debug import INFO, DebugInfo
from clgraft.caffe_layers.solver.files import TYPES, read_solver
from clgraft.caffe_layers.solver.snapshots import SolverState, expect_histories, read_state, write_state
from clgraft.core.errors import ClgraftError
from clgraft.core.model import Group, ModelError, NetSession, Sent, Store, Trainer
from clgraft.core.nn.optimizers import Optimizer
from clgraft.core.session.contexts import context

STOP, SNAPSHOT = "stop", "snapshot"
REQUESTS = (None, STOP, SNAPSHOT)
HDF5 = 0  # value of `snapshot_format`
Log = Callable[..., None]


class Solver:
    """A solver of Caffe's, on a device.

    Parameters
    ----------
    path : path
        The solver's prototxt. Paths in it are relative to the working directory.
    weights : sequence of path
        ``.caffemodel`` files to begin with; parameters that no file has are filled as the net says.
    snapshot : path, optional
        A ``.solverstate`` to go on from.
    device : str, optional
        As `clgraft.core.context` takes it.
    feed : mapping of str to array or iterator, optional
        Arrays for the tops of Input and MemoryData layers of the train net.
    test_feed : mapping of str to array or iterator, optional
        Of the test nets.
    log : callable, optional
        Gets the name of a file of Caffe's, a line of the log, and the letter of its severity.
    precision : str, optional
        As of `Trainer`: the type of products.
    group : Group, optional
        Processes that train together: each reads its part of the records, and their gradients are averaged. The first
        one tests, writes snapshots and logs.

    Attributes
    ----------
    parameters : SolverParameter
    trainer : Trainer
    iteration : int
    current_step : int
        Of the learning rate.
    shown : callable or None
        Gets the number of iterations that are done, and the loss, after each.

    Raises
    ------
    ClgraftError
        If a file cannot be read, or has what clgraft does not run.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        weights: Sequence[str | os.PathLike[str]] = (),
        snapshot: str | os.PathLike[str] | None = None,
        device: str | None = None,
        feed: Mapping[str, Any] | None = None,
        test_feed: Mapping[str, Any] | None = None,
        log: Log | None = None,
        precision: str | None = None,
        group: Group | None = None,
    ) -> None:
        self._path = os.fspath(path)
        given = read_solver(self._path)
        self.parameters = solver = given.parameters
        policies.check(solver)
        self._group = group
        self.shown: Callable[[int, float], None] | None = None
        self._rank = 0 if group is None else group.rank
        size = 1 if group is None else group.size
        self._log = log if log is not None and not self._rank else (lambda file, line, severity=INFO: None)
        seed = _agreed(group, solver.random_seed if solver.random_seed >= 0 else None)
        rng = np.random.default_rng(seed)
        state = None if snapshot is None else read_state(snapshot)
        files = [*(name for text in solver.weights for name in text.split(",")), *weights]
        if state is not None:
            files = [_learned(state.learned_net, os.fspath(snapshot or ""))]
        found = _merged([layer for file in files for layer in read_caffemodel(file)])
        self.net = CaffeNet(given.train, found, phase=TRAIN, whole=True, rng=rng)
        data_seed = rng.integers(2**32)
        self.feed = Feed(self.net.data_layers, True, data_seed, feed, (self._rank, size))
        self.net.fill(self.feed.shapes)
        where = context(device)
        self._store = Store(self.net, where)
        self.trainer = Trainer(
            self.net,
            where,
            self._store,
            _optimizer(solver),
            lr=solver.base_lr,
            seed=(int(rng.integers(2**62)) if seed is None else seed) + self._rank,
            precision=precision,
            group=group,
        )
        self._tests = []
        self._debug = DebugInfo(self.net, self._store, where, precision)
        self._looks: list[DebugInfo] = []
        for net in given.tests if not self._rank else ():
            test = CaffeNet(net, self.net.weights(), phase=TEST, whole=True)
            source = Feed(test.data_layers, False, rng.integers(2**32), test_feed)
            session = NetSession(test, device, precision=precision, store=self._store)
            self._tests.append((test, session, source))
            self._looks.append(DebugInfo(test, self._store, where, precision))
        self.iteration = self.current_step = 0
        self._unchanged: dict[tuple[str, str], np.ndarray] = {}  # restored histories of parameters that do not learn
        self._losses: deque[float] = deque(maxlen=max(1, solver.average_loss))
        self._requested: str | None = None
        self.stopped = False
        self._ahead: tuple[Batch | None, Sent | None] = None, None  # what was sent last
        if state is not None:
            self._restore(state, os.fspath(snapshot or ""))

    def request(self, action: str) -> None:
        """Ask the loop to take a snapshot, or to take one and stop, after the iteration that runs; for signals."""
        self._requested = action

    # the loop

    def solve(self) -> None:
        """Train up to `max_iter`, with the snapshot and the tests at the end that Caffe has."""
        solver = self.parameters
        self._log("solver.cpp:279", f"Solving {self.net.net.name}")
        self._log("solver.cpp:280", f"Learning Rate Policy: {solver.lr_policy}")
        self.step(solver.max_iter - self.iteration)
        if solver.snapshot_after_train and not (solver.snapshot and self.iteration % solver.snapshot == 0):
            self.snapshot()
        if self.stopped:
            self._log("solver.cpp:295", "Optimization stopped early.")
            return
        if solver.display and self.iteration % solver.display == 0:
            loss = self.trainer.loss(self.feed.next())
            self._log("solver.cpp:312", f"Iteration {self.iteration}, loss = {_shown(self._smoothed(loss))}")
        if solver.test_interval and self.iteration % solver.test_interval == 0:
            self.test_all()
        self._log("solver.cpp:320", "Optimization Done.")

    def step(self, count: int) -> None:
        """Train so many iterations, or until a request to stop."""
        solver, stop = self.parameters, self.iteration + count
        self._losses.clear()
        while self.iteration < stop:
            tested = solver.test_interval and self.iteration % solver.test_interval == 0
            if tested and (self.iteration or solver.test_initialization):
                self.test_all()
            self._iterate()
            request = self._asked()
            due = solver.snapshot and self.iteration % solver.snapshot == 0
            if due or request == SNAPSHOT:
                self.snapshot()
            if request == STOP:
                self.stopped = True
                return

    def _iterate(self) -> None:
        solver = self.parameters
        self.current_step = policies.current_step(solver, self.iteration, self.current_step)
        lr = policies.rate(solver, self.iteration, self.current_step)
        loss, display = 0.0, bool(solver.display and self.iteration % solver.display == 0)
        for part in range(solver.iter_size):
            batch = self.feed.next()
            if display and solver.debug_info and not self._rank:
                self._log_debug(self._debug.lines(batch, self.trainer.keys, self.trainer.sums))
            sent = self._sent(batch)
            loss += self.trainer.step(sent, lr=lr, update=part == solver.iter_size - 1)
            self._save(self.net, {**batch, **self.trainer.outputs})
        smoothed = self._smoothed(loss / solver.iter_size)
        if self.shown is not None:
            self.shown(self.iteration + 1, smoothed)
        if display:
            self._log("solver.cpp:228", f"Iteration {self.iteration}, loss = {_shown(smoothed)}")
            self._log_outputs("solver.cpp:244", "Train", self.net, self.trainer.outputs)
            self._log("sgd_solver.cpp:106", f"Iteration {self.iteration}, lr = {_shown(lr)}")
        self.iteration += 1

    def _sent(self, batch: Batch) -> Batch | Sent:
        """Return a batch as a step takes it, and begin to send the next one if it is there."""
        before, sent = self._ahead
        following = self.feed.peek()
        self._ahead = following, None
        if following is not None:
            with contextlib.suppress(ClgraftError):  # which the step raises
                self._ahead = following, self.trainer.send(following)
        return sent if sent is not None and before is batch else batch

    def _asked(self) -> str | None:
        """Return what was asked for: in a group, of the first process."""
        request, self._requested = self._requested, None
        if self._group is None:
            return request
        code = np.array([REQUESTS.index(request)], np.float32)
        self._group.broadcast(code)
        return REQUESTS[int(code[0])]

    def _log_debug(self, lines: Sequence[tuple[str, str, str]]) -> None:
        for severity, place, text in lines:
            self._log(place, text, severity)

    def _smoothed(self, loss: float) -> float:
        self._losses.append(loss)
        return sum(self._losses) / len(self._losses)

    def _log_outputs(self, place: str, kind: str, net: CaffeNet, outputs: Mapping[str, np.ndarray]) -> None:
        number = 0
        hidden = {name for _, blobs in net.saved.values() for name in blobs}
        for port in net.outputs:
            for value in () if port.name in hidden else np.asarray(outputs[port.name]).reshape(-1):
                weight = net.loss_weights.get(port.name, 0.0)
                term = f" (* {_shown(weight)} = {_shown(weight * value)} loss)" if weight else ""
                self._log(place, f"    {kind} net output #{number}: {port.name} = {_shown(value)}{term}")
                number += 1

    def _save(self, net: CaffeNet, outputs: Mapping[str, np.ndarray]) -> None:
        """Write the files of HDF5Output layers anew; in a group the first process writes."""
        for path, (data, label) in net.saved.values() if not self._rank else ():
            hdf5.write_rows(path, outputs[data], outputs[label])

    def test_all(self) -> list[dict[str, np.ndarray]]:
        """Run the test nets and return the means of their outputs."""
        return [self._test(number) for number in range(len(self._tests))]

    def _test(self, number: int) -> dict[str, np.ndarray]:
        net, session, source = self._tests[number]
        self._log("solver.cpp:337", f"Iteration {self.iteration}, Testing net (#{number})")
        sums: dict[str, Any] = {}
        count = self.parameters.test_iter[number]
        for _ in range(count):
            batch = source.next()
            if self.parameters.debug_info:
                self._log_debug(self._looks[number].lines(batch))
            outputs = session.run(batch)
            self._save(net, outputs)
            for name, value in outputs.items():
                sums[name] = sums[name] + value.astype(np.float64) if name in sums else value.astype(np.float64)
        means = {name: value / max(1, count) for name, value in sums.items()}
        if self.parameters.test_compute_loss:
            loss = sum(weight * float(np.sum(means[name])) for name, weight in net.loss_weights.items())
            self._log("solver.cpp:390", f"Test loss: {_shown(loss)}")
        self._log_outputs("solver.cpp:404", "Test", net, means)
        return means

    # snapshots

    def snapshot(self) -> tuple[str, str]:
        """Write the parameters and the state, and return their files; in a group the first process writes."""
        solver = self.parameters
        end = ".h5" if solver.snapshot_format == HDF5 else ""
        prefix = f"{solver.snapshot_prefix}_iter_{self.iteration}"
        model, state = f"{prefix}.caffemodel{end}", f"{prefix}.solverstate{end}"
        if self._rank:
            return model, state
        form = "HDF5 file" if end else "binary proto file"
        self._log("solver.cpp:454", f"Snapshotting to {form} {model}")
        values = self.trainer.parameters
        self.net.write(model, values)
        self._log("sgd_solver.cpp:273", f"Snapshotting solver state to {form} {state}")
        histories = self.trainer.histories
        arrays = [
            each[name] if name in each else self._unchanged.get((kind, name), np.zeros(values[name].shape, np.float32))
            for kind, each in histories.items()
            for name in self.net.order
        ]
        found = SolverState(self.iteration, model, arrays, self.current_step, self.trainer.scale_state)
        write_state(state, found)
        return model, state

    def _restore(self, state: SolverState, name: str) -> None:
        kinds, order = self.trainer.optimizer.histories, self.net.order
        expect_histories(name, state.history, len(kinds) * len(order))
        arrays = iter(state.history)
        for kind in kinds:
            for parameter in order:
                array = next(arrays)
                if parameter in self.trainer.factors:
                    self.trainer.set_history(kind, parameter, array.reshape(self._store.shape(parameter)))
                else:
                    self._unchanged[kind, parameter] = array
        self.iteration = self.trainer.steps = state.iteration
        self.current_step = state.current_step
        self.trainer.scale_state = state.loss_scale
        self._log("sgd_solver.cpp:318", f"SGDSolver: restoring history from {name}")

    def close(self) -> None:
        """End the threads that read data."""
        for feed in (self.feed, *(source for _, _, source in self._tests)):
            feed.close()


def _optimizer(solver: Any) -> Optimizer:
    """Return the optimizer of a solver."""
    kind, fields = TYPES[solver.type]
    options: dict[str, Any] = {name: getattr(solver, own) for name, own in fields.items()}
    options.update(weight_decay=solver.weight_decay, norm=solver.regularization_type)
    options["rescale_grad"] = 1 / solver.iter_size
    if solver.clip_gradients >= 0:
        options["clip_norm"] = solver.clip_gradients
    return Optimizer(kind, "caffe", options)


def _agreed(group: Group | None, seed: int | None) -> int | None:
    """Return the seed of all processes."""
    if group is None or seed is not None:
        return seed
    found = np.array([float(np.random.default_rng().integers(2**24))], np.float32)
    group.broadcast(found)
    return int(found[0])


def _learned(name: str, state: str) -> str:
    """Return the file of the parameters that a state names: as it says, or next to the state."""
    if not name:
        raise ModelError(f"[solver] got {state} without the file of its parameters, expected one")
    beside = Path(state).parent / Path(name).name
    return str(beside) if not Path(name).exists() and beside.exists() else name


def _merged(layers: Sequence[LayerWeights]) -> list[LayerWeights]:
    """Return the layers of several files: the last one of a name counts."""
    return list({layer.name: layer for layer in layers if layer.blobs}.values())


def _shown(value: float) -> str:
    """Return a number as C++ streams print it."""
    return f"{float(value):.6g}"


def run(solver: Solver) -> None:
    """Solve, and end the threads that read data."""
    try:
        solver.solve()
    except ClgraftError:
        raise
    finally:
        solver.close()
