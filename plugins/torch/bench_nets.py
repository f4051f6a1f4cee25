"""Whole nets in PyTorch: inference and training steps of torchvision's, with random weights.

PyTorch's side is the fastest of eager in channels first and channels last, and inductor in channels last, which it
computes in whatever it gets; ours is the backend of `torch.compile`. In inference both also run with parameters that
are constants. With ``CLGRAFT_PRECISION`` of 16 bits PyTorch also runs under its autocast to that type, and is the
fastest of all. Where our device has memory of its own and PyTorch is a CUDA build that finds a device, PyTorch computes
there, inductor by CUDA graphs: images come from host memory and logits, or the loss, go back there on both sides,
PyTorch's parameters stay on its device, and ours are CPU tensors.
"""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from clgraft import core
from clgraft.core.planning.precision import mixed_precision
from clgraft.plugins.command_line.bench import floors
from clgraft.plugins.command_line.bench.operators import Missing
from clgraft.plugins.command_line.bench.peers import net_batches
from clgraft.plugins.command_line.bench.results import Measurement
from clgraft.plugins.command_line.bench.timing import compare, fastest
from clgraft.plugins.torch.backend import compiler
from clgraft.plugins.torch.bench_models import mobilenet, of_torchvision
from clgraft.plugins.torch.bench_operators import FIRST, LAST, on_gpu, take_methods
from clgraft.plugins.torch.explanation import Explanation

MODE = (
    "nets: the fastest of eager in channels first and channels last, and inductor in channels last, in inference also"
    " with frozen parameters; with a precision of 16 bits also under autocast; on a GPU inductor by CUDA graphs;"
    " training with SGD with momentum, without dropout"
)
NETS: dict[str, Callable[[], Any]] = {
    "alexnet": partial(of_torchvision, "alexnet"),
    "resnet18": partial(of_torchvision, "resnet18"),
    "resnet50": partial(of_torchvision, "resnet50"),
    "vgg16": partial(of_torchvision, "vgg16"),
    "mobilenet": mobilenet,
    "mobilenetv2": partial(of_torchvision, "mobilenet_v2"),
}
PIXELS, CLASSES = 224, 1000
# relative, by the norm: what float32 leaves after 50 layers with batch norms, and Winograd's method; with 16 bits
AGREEMENT, MIXED_AGREEMENT = 1e-3, 0.1
OURS, EAGER, INDUCTOR = "clgraft", "eager", "inductor"
WHATS = ("inference", "training")


@dataclass(frozen=True)
class Way:
    """How a net runs: by what, in which layout, whether its parameters are constants, under autocast to which type."""

    by: str
    layout: str = FIRST
    frozen: bool = False
    mixed: str = ""

    def __str__(self) -> str:
        words = [self.by, *[self.layout] * (self.by != OURS), *["frozen"] * self.frozen]
        return ", ".join([*words, *[f"autocast to {self.mixed}"] * bool(self.mixed)])


def ways(what: str) -> list[Way]:
    """Return the ways in which a net runs for inference or training; ours are in the precision that is set."""
    ours, theirs = [Way(OURS)], [Way(EAGER, FIRST), Way(EAGER, LAST), Way(INDUCTOR, LAST)]
    if what == "inference":
        ours, theirs = [*ours, Way(OURS, frozen=True)], [*theirs, Way(INDUCTOR, LAST, True)]
    mixed = mixed_precision()
    return [*theirs, *([replace(way, mixed=mixed) for way in theirs] if mixed else []), *ours]


def measure(
    names: Sequence[str],
    batches: Sequence[int],
    seconds: float = 20.0,
    least: int = 5,
    directions: Collection[str] = WHATS,
) -> Iterator[Measurement | Missing]:
    """Measure nets, a row at a time: inference and training, for each batch size.

    A training step is forward, softmax cross entropy, backward and the update by SGD with momentum. Ours is
    measured as it is, and in inference with frozen parameters.

    Parameters
    ----------
    names : sequence of str
        Of `NETS`.
    batches : sequence of int
    seconds : float
        For each row.
    least : int
        The least number of steps.
    directions : sequence of str
        ``inference``, ``training`` or both.

    Raises
    ------
    PluginError
        If a name is not in `NETS`, or torchvision is not installed.
    """
    for name, batch in net_batches(names, batches, NETS):
        for what in (one for one in WHATS if one in directions):
            torch._dynamo.reset()
            yield from _rows(name, batch, what, seconds, least)
            gc.collect()


def _rows(name: str, batch: int, what: str, seconds: float, least: int) -> Iterator[Measurement | Missing]:
    text = f"{name} batch {batch}"
    torch.manual_seed(1)
    net = NETS[name]()
    steps: dict[Way, _Step] = {}
    for way in ways(what):
        try:
            steps[way] = _Step(net, batch, way, what)
        except torch._dynamo.exc.TorchDynamoException as error:  # no compiler for inductor, say
            yield Missing(f"{text} {what} by {way}", str(error).splitlines()[0], True)
    if Way(OURS) not in steps or Way(EAGER, FIRST) not in steps:
        return
    expected = steps[Way(EAGER, FIRST)].first
    differences = {way: float((step.first - expected).norm() / expected.norm()) for way, step in steps.items()}
    difference = max(differences.values(), key=lambda found: found if found == found else float("inf"))
    allowed = MIXED_AGREEMENT if mixed_precision() else AGREEMENT
    if not difference <= allowed:
        reason = f"results differ by {difference:.1e}, expected at most {allowed:.0e}"
        yield Missing(f"{text} {what}", reason, True)
        return
    yield _row(text, what, steps, compare({str(way): step.run for way, step in steps.items()}, seconds, least))


def _row(text: str, what: str, steps: Mapping[Way, _Step], times: Mapping[str, Any]) -> Measurement:
    way, natives = fastest(times, [str(way) for way in steps if way.by != OURS])
    ours, frozen = Way(OURS), Way(OURS, frozen=True)
    there, here = times[way], times[str(ours)]
    more = {}
    if frozen in steps:
        more = {"frozen": times[str(frozen)].median, "frozen_floor": floors.of(steps[frozen].run)}
    return Measurement(
        *("nets", text, text, "net", what, "torch", there.median, here.median, there.spread, here.spread),
        floor=floors.of(steps[ours].run),
        uncounted=len(steps[ours].found.kept),
        **natives,
        **more,
    )


class _Step:
    """A copy of a net that infers, or makes training steps, in one way; `run` returns when the work is done.

    Attributes
    ----------
    first : Tensor
        The logits, or the loss, of the first run.
    found : Explanation
        What became of the operators, by our backend.
    """

    def __init__(self, net: Any, batch: int, way: Way, what: str) -> None:
        training = what == "training"
        net = copy.deepcopy(net).train(training)
        for module in net.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0  # inductor draws other numbers
        self.found = Explanation()
        self.gpu = on_gpu() and way.by != OURS
        if on_gpu():
            take_methods()
        self.layout = torch.channels_last if way.layout == LAST else torch.contiguous_format
        generator = torch.Generator().manual_seed(2)
        self.images = torch.randn(batch, 3, PIXELS, PIXELS, generator=generator)
        self.labels = torch.randint(CLASSES, (batch,), generator=generator)
        net = net.to("cuda" if self.gpu else "cpu", memory_format=self.layout)
        if not self.gpu:
            self.images = self.images.contiguous(memory_format=self.layout)
        fused = {"fused": True} if on_gpu() else {}
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, **fused)
        self.model = self._compiled(net, way)
        dtype = getattr(torch, way.mixed) if way.mixed else None
        self.autocast = partial(torch.autocast, "cuda" if self.gpu else "cpu", dtype, bool(way.mixed))
        self.run = self._train if training else self._infer
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # compilers warn
            self.first = self.run()
            self.run()

    def _compiled(self, net: Any, way: Way) -> Any:
        if way.by == EAGER:
            return net
        if way.by == INDUCTOR:
            return torch.compile(net, options={"freezing": way.frozen, "triton.cudagraphs": self.gpu})
        return torch.compile(net, backend=compiler(core.context(), self.found, way.frozen))

    def _sent(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.gpu:
            return tensor
        layout = self.layout if tensor.ndim == 4 else torch.contiguous_format
        return tensor.to("cuda").contiguous(memory_format=layout)

    def _infer(self) -> torch.Tensor:
        with torch.no_grad(), self.autocast():
            return self.model(self._sent(self.images)).float().cpu()  # type: ignore[no-any-return]

    def _train(self) -> torch.Tensor:
        images, labels = self._sent(self.images), self._sent(self.labels)
        self.optimizer.zero_grad()
        with self.autocast():
            loss = functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        found = loss.detach().cpu()
        if self.gpu:
            torch.cuda.synchronize()
        return found
