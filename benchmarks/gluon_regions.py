"""Counts the regions of nets of GluonCV, of MXNet's own zoo, and of text, and the operators that stay MXNet's.

    pip install --no-deps gluoncv==0.10.5 portalocker yacs autocfg tqdm
    python benchmarks/gluon_regions.py resnet18_v1b shufflenet se_resnet18 fcn_resnet50_voc lstm_lm gru_tagger

Nothing is computed: a net is traced and swapped as when it is hybridized. The table is Markdown.
"""

from __future__ import annotations

import argparse
from collections import Counter

from progress import announced

TASKS = (
    *("ssd", "yolo", "faster", "mask", "fcn", "psp", "deeplab", "danet", "icnet", "fastscnn", "center"),
    *("simple_pose", "mobile_pose", "alpha_pose"),
)
# layer of Gluon's, and its attributes
LANGUAGE = {
    "lstm_lm": ("LSTM", {"num_layers": 2, "dropout": 0.2}),
    "gru_tagger": ("GRU", {"bidirectional": True}),
    "rnn_lm": ("RNN", {"activation": "tanh"}),
}


def language_net(name: str):
    """Return one of `LANGUAGE`: layers as nets of text have them."""
    from mxnet.gluon import nn, rnn

    layer, keys = LANGUAGE[name]
    net = nn.HybridSequential()
    words, size = 1000, 64
    net.add(nn.Embedding(words, size), nn.Dropout(0.2))
    net.add(getattr(rnn, layer)(size, layout="NTC", input_size=size, **keys), nn.Dropout(0.2))
    net.add(nn.Dense(words, flatten=False))
    return net


def net_of(name: str):
    """Return a net by its name in GluonCV, or in MXNet's zoo where GluonCV is not installed."""
    if name in LANGUAGE:
        return language_net(name)
    try:
        from gluoncv import model_zoo
    except ImportError:
        from mxnet.gluon.model_zoo import vision as model_zoo
    return model_zoo.get_model(name, **({"pretrained_base": False} if "_" in name and is_task(name) else {}))


def is_task(name: str) -> bool:
    """Return whether a net has another net inside, whose parameters would be downloaded."""
    return name.startswith(TASKS) or "kinetics" in name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="+")
    options = parser.parse_args()
    import clgraft.mxnet_ops as ops

    print("| net | replaced | regions | operators in them | left |\n|---|---|---|---|---|")
    for name in announced(options.nets):
        try:
            report = ops.swap_block(net_of(name))
        except Exception as error:  # of GluonCV's code with today's packages
            print(f"| {name} | {type(error).__name__}: {str(error).splitlines()[0][:80]} | | | |", flush=True)
            continue
        left = Counter(row.operator for row in report.kept)
        inside = sum(len(names) for names in report.regions.values())
        text = ", ".join(f"{count} {operator}" for operator, count in left.most_common()) or "-"
        print(f"| {name} | {len(report.replaced)} | {len(report.regions)} | {inside} | {text} |", flush=True)


if __name__ == "__main__":
    main()
