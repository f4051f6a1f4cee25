"""Steps of training of nets in Caffe's form: `session.trainer` without Caffe, and PyTorch on the same device.

    python benchmarks/caffe_trainer.py resnet50 --batch 32 --device gpu --peer cuda --precision float16
    python benchmarks/caffe_trainer.py resnet18 --batch 2 --size 64 --device pocl

Each net is a prototxt, which both sides read: ours as any model of Caffe, PyTorch's by a few lines of this file. A step
sends images and labels to the device, computes the loss and its gradients, changes the parameters by SGD with momentum
and weight decay, and brings the loss back. The parameters of both are the same, and after the first step their losses
and weights are compared. With ``--precision float16`` products have 16 bits: ours with a factor of the loss that
follows the gradients, PyTorch's under its autocast without one, which is less work.

PyTorch's images are in pinned memory. On a GPU its whole step, with the fused optimizer, is recorded as a CUDA graph;
``--compile`` adds the same of a net that went through torch.compile. Its time is the best of its modes, layouts among
them; on the CPU it has the faster of its default number of threads and all processors. On a GPU a second row of each
net has batches that both sides send ahead: `Trainer.send`, and PyTorch's copies on a stream of their own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from progress import announced
from timing import keep, restarted, row

from clgraft import core
from clgraft.caffe_layers.nets.net import TRAIN, CaffeNet, read_net
from clgraft.core import settings
from clgraft.core.model import NetSession
from clgraft.plugins.caffe.net_texts import CLASSES, NETS

SGD = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-4}
WARM_UPS = 3


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=["resnet50"], help=f"of {list(NETS)}")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224, help="of the images")
    parser.add_argument("--device", help="OpenCL device (default: CLGRAFT_DEVICE)")
    parser.add_argument("--peer", choices=("cpu", "cuda", "none"), default="cpu", help="where PyTorch runs")
    parser.add_argument("--compile", action="store_true", help="torch.compile as a further mode of the peer")
    parser.add_argument("--precision", choices=("float32", *settings.MIXED), default="float32", help="of both sides")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", default="", metavar="FILE", help="keep the figures")
    return parser.parse_args()


class Ours:
    """A net that `session.trainer` trains."""

    def __init__(self, text: str, precision: str) -> None:
        self.net = read_net(text.encode())
        whole = CaffeNet(self.net, phase=TRAIN, whole=True, rng=np.random.default_rng(0))
        shapes = {port.name: port.usual for port in whole.inputs}
        whole.fill(shapes)
        self.weights = {layer.name: layer.blobs for layer in whole.weights()}
        rng = np.random.default_rng(1)
        self.arrays = {
            "data": rng.standard_normal(shapes["data"], np.float32),
            "label": rng.integers(0, CLASSES, shapes["label"]).astype(np.float32),
        }
        session = NetSession(CaffeNet(self.net, whole.weights(), phase=TRAIN, whole=True))
        self.trainer = session.trainer("sgd", **SGD, precision=precision)
        self._sent: Any = None

    def step(self) -> float:
        """Train once and return the loss."""
        return self.trainer.step(self.arrays)

    def step_ahead(self) -> float:
        """Train once with a batch that was sent before, while the next one travels."""
        sent, self._sent = self._sent or self.trainer.send(self.arrays), self.trainer.send(self.arrays)
        return self.trainer.step(sent)


class Peer:
    """The same net in PyTorch."""

    def __init__(self, ours: Ours, where: str, mode: str, precision: str) -> None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self.torch, self.where, self._layers = torch, where, list(ours.net.layer)
        self._layout = torch.channels_last if "last" in mode else torch.contiguous_format
        self._mixed = getattr(torch, precision) if precision in settings.MIXED else None
        self.parameters = {
            (layer.name, i): self._on_device(blob).requires_grad_()
            for layer in self._layers
            for i, blob in enumerate(ours.weights.get(layer.name, ()))
            if layer.type != "BatchNorm"
        }
        self.averages = {
            layer.name: [self._on_device(blob) for blob in ours.weights[layer.name][:2]]
            for layer in self._layers
            if layer.type == "BatchNorm"
        }
        self._given = [torch.from_numpy(ours.arrays["data"]), torch.from_numpy(ours.arrays["label"]).long()]
        if where == "cuda":
            self._given = [array.pin_memory() for array in self._given]
        self._arrays = [array.to(where, memory_format=self._layout_of(array)) for array in self._given]
        fused = {"fused": True} if where == "cuda" else {}
        self._optimizer = torch.optim.SGD(self.parameters.values(), **SGD, **fused)
        self._forward = torch.compile(self._net) if "compile" in mode else self._net
        self._loss: Any = None
        self._recorded: Any = None
        self._stream: Any = torch.cuda.Stream() if where == "cuda" else None
        self._sending: Any = torch.cuda.Stream() if where == "cuda" else None
        self._ahead: list[Any] = []  # the next batch on the device
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())

    def _layout_of(self, array: Any) -> Any:
        return self._layout if array.ndim == 4 else self.torch.contiguous_format

    def _on_device(self, blob: np.ndarray) -> Any:
        made = self.torch.from_numpy(np.array(blob)).to(self.where)
        return made.to(memory_format=self._layout_of(made)) if made.ndim == 4 else made

    def _net(self, images: Any, labels: Any) -> Any:
        """Return the loss of the layers of the prototxt."""
        torch, nn = self.torch, self.torch.nn.functional
        blobs = {"data": images, "label": labels}
        layers = iter(self._layers)
        with torch.autocast(self.where, self._mixed, self._mixed is not None, cache_enabled=False):
            for layer in layers:
                x = [blobs[name] for name in layer.bottom]
                own = [self.parameters[layer.name, i] for i in range(2) if (layer.name, i) in self.parameters]
                if layer.type == "Input":
                    continue
                if layer.type == "Convolution":
                    p = layer.convolution_param
                    sizes = {"stride": p.stride[0], "padding": p.pad[0], "groups": p.group}
                    y = nn.conv2d(x[0], own[0], None, **sizes)
                elif layer.type == "BatchNorm":
                    scale = next(layers)
                    own = [self.parameters[scale.name, i] for i in range(2)]
                    y = nn.batch_norm(x[0], *self.averages[layer.name], *own, training=True, eps=1e-5)
                elif layer.type == "ReLU":
                    y = nn.relu(x[0])
                elif layer.type == "Pooling" and layer.pooling_param.global_pooling:
                    y = x[0].mean((2, 3))
                elif layer.type == "Pooling":
                    p = layer.pooling_param
                    y = nn.max_pool2d(x[0], p.kernel_size, p.stride, p.pad, ceil_mode=True)
                elif layer.type == "Eltwise":
                    y = x[0] + x[1]
                elif layer.type == "InnerProduct":
                    y = nn.linear(x[0], *own)
                elif layer.type == "SoftmaxWithLoss":
                    y = nn.cross_entropy(x[0].float(), x[1])
                else:
                    raise SystemExit(f"got layer {layer.type}, expected those of {list(NETS)}")
                blobs[layer.top[0]] = y
        return blobs["loss"]

    def _train(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._loss = self._forward(*self._arrays)
        self._loss.backward()
        self._optimizer.step()

    def record(self) -> None:
        """Record the step as a CUDA graph, after a few steps without one."""
        with self.torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                self._train()
        self._loss = None  # what it holds of the gradients' graph would be met while the step is recorded
        self._optimizer.zero_grad(set_to_none=True)
        self.torch.cuda.synchronize()
        self._recorded = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(self._recorded, stream=self._stream):
            self._train()
        self._loss = self._loss.detach()

    def step(self) -> float:
        """Train once and return the loss."""
        with self.torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            for array, given in zip(self._arrays, self._given):
                array.copy_(given, non_blocking=True)
            if self._recorded is None:
                self._train()
            else:
                self._recorded.replay()
            return float(self._loss.detach())

    def step_ahead(self) -> float:
        """Train once with a batch that was sent before, while the next one travels."""
        cuda = self.torch.cuda
        if not self._ahead:
            self._ahead = [self.torch.empty_like(array) for array in self._arrays]
            self._send_ahead()
        with cuda.stream(self._stream):
            self._stream.wait_stream(self._sending)
            for array, sent in zip(self._arrays, self._ahead):
                array.copy_(sent)
            self._sending.wait_stream(self._stream)
            self._recorded.replay()
            self._send_ahead()
            return float(self._loss.detach())

    def _send_ahead(self) -> None:
        with self.torch.cuda.stream(self._sending):
            for array, given in zip(self._ahead, self._given):
                array.copy_(given, non_blocking=True)

    def computed(self) -> None:
        """Train once with what is on the device, and wait."""
        with self.torch.cuda.stream(self._stream):
            self._recorded.replay()
        self.torch.cuda.synchronize()


def difference(ours: Ours, peer: Peer) -> tuple[float, float]:
    """Return how far the losses of a step are apart, and the changes of weights relative to a parameter's largest."""
    before = ours.trainer.parameters
    mine, theirs = ours.step(), peer.step()
    after = ours.trainer.parameters
    names = {f"{layer}[{i}]": tensor for (layer, i), tensor in peer.parameters.items()}
    changes = {name: tensor.detach().cpu().numpy() - before[name] for name, tensor in names.items()}
    least = 1e-3 * max(float(np.abs(change).max()) for change in changes.values())
    worst = max(
        float(np.abs(after[name] - before[name] - change).max()) / max(float(np.abs(change).max()), least)
        for name, change in changes.items()
    )
    return abs(mine - theirs) / abs(theirs), worst


def medians(calls: list[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median seconds of calls that take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls * WARM_UPS:
        call()
    for _ in range(repeats):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            times[i].append(time.perf_counter() - start)
    return [statistics.median(each) for each in times]


def main() -> None:
    """Print a line for each net."""
    options = parse()
    if options.device:
        os.environ["CLGRAFT_DEVICE"] = options.device
    threads = {"torch": restarted("torch")} if options.peer == "cpu" else {}
    context = core.context()
    print(f"{context.device}; batch {options.batch}, {options.size} pixels, {options.precision}; steps with SGD")
    rows, versions = [], {}
    for name in announced(options.nets):
        ours = Ours(NETS[name](options.batch, True, options.size), options.precision)
        layouts = [] if options.peer == "none" else ["", "channels last"]
        kinds = layouts + ["compile, channels last"] * (options.compile and bool(layouts))
        peers = [Peer(ours, options.peer, kind, options.precision) for kind in kinds]
        start = time.perf_counter()
        if peers:
            loss, change = difference(ours, peers[0])
            print(f"  the first step: losses differ by {loss:.1e}, the largest changes of weights by {change:.1e}")
        else:
            ours.step()
        print(f"  compiled in {time.perf_counter() - start:.1f} s", flush=True)
        if options.peer == "cuda":
            for peer in peers:
                peer.record()
        mine, *theirs = medians([ours.step, *(peer.step for peer in peers)], options.repeats)
        best, kind = min(zip(theirs, kinds), default=(0.0, ""))
        found = ", ".join(f"PyTorch {kind or 'channels first'} {1e3 * s:.2f}" for kind, s in zip(kinds, theirs))
        ratio = f"; best of PyTorch over ours {best / mine:.2f}" if best else ""
        print(f"{name}: ours {1e3 * mine:.2f} ms, {found}{ratio}", flush=True)
        rows.append(row("sessions", name, "training", "torch" if peers else "", best, mine, layout=kind))
        if options.peer == "cuda":
            mine, *theirs = medians([ours.step_ahead, *(peer.step_ahead for peer in peers)], options.repeats)
            best, kind = min(zip(theirs, kinds))
            print(
                f"  batches sent ahead: ours {1e3 * mine:.2f} ms, PyTorch {1e3 * best:.2f}; {best / mine:.2f}",
                flush=True,
            )
            rows.append(row("sessions", f"{name}, sent ahead", "training", "torch", best, mine, layout=kind))
            times = medians([peer.computed for peer in peers], options.repeats)
            print("  without the images: " + ", ".join(f"{1e3 * seconds:.2f}" for seconds in times), flush=True)
        if peers:
            mixed = f", {options.precision}" * (options.precision != "float32")
            graphs = ", CUDA graphs" * (options.peer == "cuda")
            versions["torch"] = f"PyTorch {peers[0].torch.__version__}{mixed}{graphs}"
        del ours, peers
    keep(options.json, context, rows, versions, threads)


if __name__ == "__main__":
    main()
