"""Counts the regions of nets of GluonCV, or of MXNet's own zoo, and the operators that stay MXNet's.

    pip install --no-deps gluoncv==0.10.5 portalocker yacs autocfg tqdm
    python benchmarks/gluon_regions.py resnet18_v1b shufflenet se_resnet18 fcn_resnet50_voc

Nothing is computed: a net is traced and swapped as when it is hybridized. The table is Markdown.
"""

from __future__ import annotations

import argparse
from collections import Counter

from progress import announced


def net_of(name: str):
    """Return a net by its name in GluonCV, or in MXNet's zoo where GluonCV is not installed."""
    try:
        from gluoncv import model_zoo
    except ImportError:
        from mxnet.gluon.model_zoo import vision as model_zoo
    return model_zoo.get_model(name, **({"pretrained_base": False} if "_" in name and is_task(name) else {}))


def is_task(name: str) -> bool:
    """Return whether a net has another net inside, whose parameters would be downloaded."""
    return name.startswith(
        ("ssd", "yolo", "faster", "mask", "fcn", "psp", "deeplab", "danet", "icnet", "center", "simple_pose")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="+")
    options = parser.parse_args()
    import clgraft.mxnet_ops as ops

    print("| net | replaced | regions | operators in them | left |\n|---|---|---|---|---|")
    for name in announced(options.nets):
        report = ops.swap_block(net_of(name))
        left = Counter(row.operator for row in report.kept)
        inside = sum(len(names) for names in report.regions.values())
        text = ", ".join(f"{count} {operator}" for operator, count in left.most_common()) or "-"
        print(f"| {name} | {len(report.replaced)} | {len(report.regions)} | {inside} | {text} |")


if __name__ == "__main__":
    main()
