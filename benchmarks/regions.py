"""Times models of MXNet's zoo with regions against the same models operator by operator, interleaved in one process.

    python benchmarks/regions.py resnet50_v1 mobilenet1.0 --batch 32 --device nvidia

Inference and a training step with forward, backward and optimizer; `--native` adds MXNet's own operators, `--frozen`
regions with frozen parameters, which make a difference to inference, and `--trainer` regions whose parameters
`clgraft.mxnet_ops.Trainer` keeps on the device. Before it is timed, outputs of each model are compared with those of
the single operators, and so are losses where nothing is drawn. `--session` times inference of the exported model
without MXNet as well, by `clgraft.load`: `report.py` makes a table of it, against regions. Times are those of the wall
clock and of the processors: the latter mean more on a machine that does other work as well. MXNet, where its operators
or optimizers are timed, has the faster of its default number of threads and all processors. The floor is the time that
the device's measured peaks allow for what clgraft runs, see docs/performance.md.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from typing import Any

import numpy as np
from progress import announced
from timing import keep, restarted, row

from clgraft.plugins.command_line.bench.results import Measurement

# how far outputs and losses of regions may be off those of single operators, which are float32
OFF = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 2e-1}


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=["resnet18_v1", "mobilenet1.0"], help="names of the model zoo")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224, help="of the images")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--device", help="as CLGRAFT_DEVICE; by default what that holds")
    parser.add_argument("--native", action="store_true", help="time MXNet's own operators too")
    parser.add_argument("--optimizer", default="sgd", help="sgd, ocl_sgd, ...; --native has MXNet's own")
    parser.add_argument("--frozen", action="store_true", help="time regions with frozen parameters too")
    parser.add_argument("--precision", choices=tuple(OFF), default="float32", help="of the regions")
    parser.add_argument("--trainer", action="store_true", help="time regions with clgraft.mxnet_ops.Trainer too")
    parser.add_argument("--session", action="store_true", help="time inference of the exported model without MXNet too")
    parser.add_argument("--inference", action="store_true", help="leave training out")
    parser.add_argument("--json", default="", metavar="FILE", help="keep the times by the wall clock")
    return parser.parse_args()


class Model:
    """A net of the zoo that infers and trains."""

    def __init__(self, name: str, kind: str, options: argparse.Namespace, parameters: str) -> None:
        import mxnet as mx
        from mxnet import gluon

        import clgraft.mxnet_ops as ops

        self.mx, self.batch = mx, options.batch
        self.net = gluon.model_zoo.vision.get_model(name, prefix="net_")
        if kind != "native":
            precision = None if kind == "operators" else options.precision
            regions = kind != "operators"
            ops.swap_block(self.net, fuse=False, regions=regions, frozen=kind == "frozen", precision=precision)
        if os.path.exists(parameters):
            self.net.load_parameters(parameters)
        else:
            self.net.initialize(mx.init.Xavier(magnitude=2))
        self.net.hybridize(static_alloc=True, static_shape=True)
        rng = np.random.default_rng(0)
        self.x = mx.nd.array(rng.standard_normal((options.batch, 3, options.size, options.size)))
        self.labels = mx.nd.array(rng.integers(0, 1000, options.batch))
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self.net(self.x).wait_to_read()
        if not os.path.exists(parameters):
            self.net.save_parameters(parameters)
        optimizer = options.optimizer.removeprefix("ocl_" if kind == "native" else "")
        settings = {"learning_rate": 1e-4, **({} if optimizer.endswith("adam") else {"momentum": 0.9})}
        if kind == "trainer":
            self.trainer = ops.Trainer(self.net.collect_params(), optimizer.removeprefix("ocl_"), settings)
        else:
            self.trainer = gluon.Trainer(self.net.collect_params(), optimizer, settings)

    def infer(self) -> Any:
        """Return the outputs."""
        found = self.net(self.x)
        self.mx.nd.waitall()
        return found

    def train(self) -> float:
        """Return the loss before a step of training."""
        with self.mx.autograd.record():
            loss = self.loss(self.net(self.x), self.labels)
        loss.backward()
        self.trainer.step(self.batch)
        self.mx.nd.waitall()
        return float(loss.mean().asscalar())


class Session:
    """The model as MXNet exports it, in a session of clgraft's, which sends images and brings outputs back."""

    def __init__(self, name: str, options: argparse.Namespace, parameters: str) -> None:
        import clgraft

        model = Model(name, "native", options, parameters)
        folder = os.path.dirname(parameters)
        model.net.export(os.path.join(folder, "exported"))
        precision = None if options.precision == "float32" else options.precision
        self.session = clgraft.load(os.path.join(folder, "exported-symbol.json"), precision=precision)
        self.x = model.x.asnumpy()

    def infer(self) -> np.ndarray:
        """Return the outputs."""
        (found,) = self.session.run({"data": self.x}).values()
        return found


def expect_equal(name: str, models: dict[str, Model], session: Session | None, train: bool, off: float) -> None:
    """Compare outputs, and losses of two steps unless a dropout makes them random."""
    outputs = {kind: model.infer().asnumpy() for kind, model in models.items()}
    if session is not None:
        outputs["session"] = session.infer()
    losses = {kind: [model.train() for _ in range(2 * train)] for kind, model in models.items()}
    expected, random = outputs["operators"], "Dropout" in str(models["operators"].net)
    for kind in outputs:
        what = f"{name}, {kind}"
        np.testing.assert_allclose(outputs[kind], expected, atol=off * np.abs(expected).max(), err_msg=what)
        if kind in models and train and not random:
            # rounding alone changes the loss after a step, by 6e-4 if MXNet gets ResNet-50's 8 images in another order
            steps = 1 if kind == "native" else 2
            np.testing.assert_allclose(losses[kind][:steps], losses["operators"][:steps], rtol=off, err_msg=what)


def interleaved(models: dict[str, Any], action: str, runs: int) -> dict[str, list[tuple[float, float]]]:
    """Return the times of each model in milliseconds, by the wall clock and of the processors."""
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in models}
    for _ in range(runs):
        for kind, model in models.items():
            began, busy = time.perf_counter(), time.process_time()
            getattr(model, action)()
            times[kind].append((1e3 * (time.perf_counter() - began), 1e3 * (time.process_time() - busy)))
    return times


def row_of(name: str, action: str, seconds: dict[str, float], floors: dict[str, float]) -> Measurement:
    """Return the row of a net, by the names of its kinds."""
    native = seconds.get("native", 0.0)
    kept = {"regions": "regions", "frozen": "frozen", **({"trainer": "updated"} if action == "train" else {})}
    more = {field: seconds[kind] for kind, field in kept.items() if kind in seconds}
    more |= {f"{field}_floor": floors[kind] for kind, field in kept.items() if kind in seconds}
    direction = {"infer": "inference", "train": "training"}[action]
    peer = "mxnet" if native else ""
    return row("nets", name, direction, peer, native, seconds["operators"], floor=floors["operators"], **more)


def main() -> None:
    """Print a line for each net."""
    import tempfile

    options = parse()
    if options.device:
        os.environ["CLGRAFT_DEVICE"] = options.device
    threads = {}
    if options.native or not options.optimizer.startswith("ocl_"):
        threads["mxnet"] = restarted("mxnet")
        print(f"MXNet: {threads['mxnet']}")
    ours = ["operators", "regions"] + ["frozen"] * options.frozen + ["trainer"] * options.trainer
    kinds = ours + ["native"] * options.native
    actions = ("infer",) if options.inference else ("infer", "train")
    import clgraft.mxnet_ops  # noqa: F401
    from clgraft import core
    from clgraft.plugins.command_line.bench import floors

    rows = []
    print(f"{core.context().device}, batch {options.batch}, {options.size} pixels; medians of {options.runs} runs")
    for name in announced(options.nets):
        with tempfile.TemporaryDirectory() as folder:
            parameters = os.path.join(folder, "net.params")
            models = {kind: Model(name, kind, options, parameters) for kind in kinds}
            session = Session(name, options, parameters) if options.session else None
            expect_equal(name, models, session, "train" in actions, OFF[options.precision])
            for action in actions:
                for kind in kinds[1:]:
                    getattr(models[kind], action)()
                timed = {**models, "session": session} if session is not None and action == "infer" else models
                times = interleaved(timed, action, options.runs)
                for number, clock in enumerate(("wall clock", "processors")):
                    found = {kind: [pair[number] for pair in pairs] for kind, pairs in times.items()}
                    each = "  ".join(f"{kind} {statistics.median(own):8.1f} ms" for kind, own in found.items())
                    ratios = []
                    for kind in ours[1:]:
                        pairs = zip(found["operators"], found[kind])
                        ratios.append(f"operators / {kind} {statistics.median(a / b for a, b in pairs):.2f}")
                    if "session" in found:
                        pairs = zip(found["regions"], found["session"])
                        ratios.append(f"regions / session {statistics.median(a / b for a, b in pairs):.2f}")
                    print(f"{name:16} {action:5} {clock}  {each}  {'  '.join(ratios)}", flush=True)
                print(f"{name:16} {action:5} floor       ", end="")
                least = {kind: floors.of(getattr(models[kind], action)) for kind in ours}
                walls = {kind: 1e-3 * statistics.median(wall for wall, _ in pairs) for kind, pairs in times.items()}
                for kind, floor in least.items():
                    print(f"  {kind} {1e3 * floor:8.1f} ms ({floor / walls[kind]:.0%})", end="")
                print(flush=True)
                rows.append(row_of(name, action, walls, least))
                if "session" in walls:
                    rows += [
                        row("sessions", name, "inference", kind, walls[kind], walls["session"])
                        for kind in ("regions", "frozen")
                        if kind in walls
                    ]
        del models, session, timed
        gc.collect()  # before the next net takes as much memory
    import mxnet

    keep(options.json, core.context(), rows, {"mxnet": f"MXNet {mxnet.__version__}"}, threads)


if __name__ == "__main__":
    main()
