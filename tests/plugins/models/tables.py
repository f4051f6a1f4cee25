"""The tables of docs/models.md, of what sessions run: ``python -m tests.plugins.models.tables`` writes them anew."""

from __future__ import annotations

from pathlib import Path

from clgraft.caffe_layers import LAYERS
from clgraft.caffe_layers.data.sources import GIVEN, KINDS
from clgraft.caffe_layers.hosted.classes import CLASSES
from clgraft.caffe_layers.nets.layers import is_loss
from clgraft.caffe_layers.nets.net import ACCURACY, DATA, FILTER, INPUT, SAVE, SILENCE, SPLIT
from clgraft.caffe_layers.swap.rules import OWN

PAGE = Path(__file__).resolve().parents[3] / "docs" / "models.md"
WIDTH = 118
# Caffe's own types, in its registry; those of forks are known by clgraft's layers alone
CAFFE = """AbsVal Accuracy ArgMax BNLL BatchNorm BatchReindex Bias Clip Concat ContrastiveLoss Convolution Crop Data
Deconvolution Dropout DummyData ELU Eltwise Embed EuclideanLoss Exp Filter Flatten HDF5Data HDF5Output HingeLoss Im2col
ImageData InfogainLoss InnerProduct Input LRN LSTM LSTMUnit Log MVN MemoryData MultinomialLogisticLoss PReLU Parameter
Pooling Power Python RNN ReLU Reduction Reshape SPP Scale Sigmoid SigmoidCrossEntropyLoss Silence Slice Softmax
SoftmaxWithLoss Split Swish TanH Threshold Tile WindowData"""
MXNET_REFUSED = "_foreach _while_loop _cond"  # control flow


def layers() -> dict[str, list[str]]:
    """Return Caffe's types by what becomes of them."""
    ours = {name[len("Ocl") :]: name for name in LAYERS if name not in OWN}
    ours.update(CLASSES)
    trained = {kind for kind, name in ours.items() if is_loss(name)} | {ACCURACY, *KINDS, *GIVEN} - {INPUT}
    runs = (set(ours) | {INPUT, SPLIT, SILENCE, FILTER, SAVE}) - trained
    own = set(CAFFE.split())
    return {
        "Caffe's, in every session": sorted(runs & own),
        "of forks, in every session": sorted(runs - own),
        "for training alone": sorted(trained),
        "refused by name": sorted(own - runs - trained | (set(DATA) - runs - trained)),
    }


def operators() -> dict[str, list[str]]:
    """Return MXNet's operators by what becomes of them, each by one of its names."""
    from clgraft.mxnet_ops.operators.inner import INNER
    from clgraft.mxnet_ops.swap import table
    from clgraft.mxnet_ops.symbols.lowering import SAME_IN_INFERENCE

    swapped = {*table.REAL_ONLY, *table.TYPELESS, *table.UNARY, *table.BINARY}
    return {
        "also swapped": sorted(swapped, key=str.lower),
        "in regions and sessions, or in sessions alone": sorted(
            {*INNER, *SAME_IN_INFERENCE} - swapped, key=lambda name: name.strip("_").lower()
        ),
        "refused by name, as every other": MXNET_REFUSED.split(),
    }


TABLES = {"layers": ("type", " of layers", layers), "operators": ("operator", "", operators)}


def table(name: str) -> str:
    """Return one of the tables, with its marks."""
    what, more, find = TABLES[name]
    lines = [f"<!-- {name}: begin -->", ""]
    for kind, names in find().items():
        lines += [f"**{len(names)} {what}{'s' * (len(names) != 1)}{more}, {kind}**:", "", *_wrapped(names), ""]
    return "\n".join([*lines, f"<!-- {name}: end -->"])


def _wrapped(words: list[str]) -> list[str]:
    lines = [""]
    for word in words:
        shown = f"`{word}`" if "_" in word else word
        if len(lines[-1]) + len(shown) > WIDTH:
            lines.append("")
        lines[-1] = f"{lines[-1]} {shown}".strip()
    return lines


def main() -> None:
    """Put the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name in TABLES:
        before, _, rest = text.partition(f"<!-- {name}: begin -->")
        text = before + table(name) + rest.partition(f"<!-- {name}: end -->")[2]
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
