"""Counts the regions of nets of GluonCV, GluonNLP, MXNet's own zoo, and of text, and the operators left to MXNet.

    pip install --no-deps gluoncv==0.10.5 portalocker yacs autocfg tqdm "cython<3"
    pip install --no-deps --no-build-isolation gluonnlp==0.10.0
    python benchmarks/gluon_regions.py resnet18_v1b shufflenet se_resnet18 fcn_resnet50_voc lstm_lm bert_12_768_12

Nothing is computed: a net is traced and swapped as when it is hybridized. Nets of GluonNLP are no hybrid blocks, or
take several inputs: these are hybridized and called once with two sentences of eight words, and what is counted are
the graphs that their blocks then have. The table is Markdown.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

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


WORDS, SENTENCES, LENGTH = 1000, 2, 8
TEXT = {  # of GluonNLP, with what a call takes
    **dict.fromkeys(("standard_lstm_lm_200", "awd_lstm_lm_600", "big_rnn_lm_2048_512"), "words first"),
    **dict.fromkeys(("bert_12_768_12", "ernie_12_768_12"), "words types lengths"),
    **dict.fromkeys(("roberta_12_768_12", "distilbert_6_768_12"), "words lengths"),
    "elmo_2x1024_128_2048cnn_1xhighway": "letters",
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


def text_net(name: str) -> tuple[Any, list[Any]]:
    """Return one of `TEXT`, initialized, and the inputs of a call."""
    import gluonnlp
    import mxnet as mx

    words = gluonnlp.data.count_tokens([str(number) for number in range(WORDS)])
    kind = gluonnlp.vocab.BERTVocab if "types" in TEXT[name] or "lengths" in TEXT[name] else gluonnlp.Vocab
    given: dict[str, Any] = {} if TEXT[name] == "letters" else {"vocab": kind(words)}
    if name.startswith(("bert", "ernie", "roberta")):
        given |= {"use_decoder": False}
    if "types" in TEXT[name]:
        given |= {"use_classifier": False}
    net, _ = gluonnlp.model.get_model(name, dataset_name=None, pretrained=False, **given)
    net.initialize()
    if TEXT[name] == "words first":
        states = net.begin_state(batch_size=SENTENCES, func=mx.nd.zeros)
        return net, [mx.nd.ones((LENGTH, SENTENCES)), states]
    if TEXT[name] == "letters":
        states = net.begin_state(mx.nd.zeros, batch_size=SENTENCES)
        return net, [mx.nd.ones((SENTENCES, LENGTH, 50)), states]
    sentences, lengths = mx.nd.ones((SENTENCES, LENGTH)), mx.nd.full((SENTENCES,), LENGTH)
    return net, [sentences, *([mx.nd.zeros_like(sentences)] if "types" in TEXT[name] else []), lengths]


def called_graphs(block: Any) -> Iterator[list[dict[str, Any]]]:
    """Return the nodes of the graphs that a net's blocks have after a call."""
    graph = getattr(block, "_cached_graph", ())
    if graph:
        yield json.loads(graph[1].tojson())["nodes"]
    for child in block._children.values():
        yield from called_graphs(child)


def text_row(name: str) -> str:
    """Return the row of one of `TEXT`."""
    import clgraft.mxnet_ops as ops

    net, inputs = text_net(name)
    ops.swap_block(net)
    net.hybridize()
    net(*inputs)
    nodes = [node for graph in called_graphs(net) for node in graph]
    types = [node.get("attrs", {}).get("op_type") for node in nodes]
    regions = [node for node, kind in zip(nodes, types) if kind == "ocl_region"]
    graphs = [json.loads(node["attrs"]["graph"]) for node in regions]
    inside = sum(len(graph["nodes"]) - len(graph["arg_nodes"]) for graph in graphs)
    alone = sum(kind is not None and kind != "ocl_region" for kind in types)
    left = Counter(node["op"] for node in nodes if node["op"] not in ("null", "Custom"))
    return row_of(name, inside + alone, len(regions), inside, left)


def row_of(name: str, replaced: int, regions: int, inside: int, left: Counter) -> str:
    """Return a row of the table."""
    text = ", ".join(f"{count} {operator}" for operator, count in left.most_common()) or "-"
    return f"| {name} | {replaced} | {regions} | {inside} | {text} |"


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
            if name in TEXT:
                print(text_row(name), flush=True)
                continue
            report = ops.swap_block(net_of(name))
        except Exception as error:  # of GluonCV's code with today's packages
            print(f"| {name} | {type(error).__name__}: {str(error).splitlines()[0][:80]} | | | |", flush=True)
            continue
        left = Counter(row.operator for row in report.kept)
        inside = sum(len(names) for names in report.regions.values())
        print(row_of(name, len(report.replaced), len(report.regions), inside, left), flush=True)


if __name__ == "__main__":
    main()
