"""Writes the table of docs/mxnet-nets.md on MXNet's zoo without MXNet: sessions against MXNet, and exports.

PYTHONPATH=.venv-newer/onnx-for-mxnet .venv-3.11/bin/python -m tests.plugins.onnx.mxnet_exports FOLDER --all
.venv-newer/bin/python -m tests.plugins.models.zoo_exports FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import clgraft
from clgraft import core
from tests.plugins.onnx.mxnet_exports import NETS, OTHERS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "mxnet-nets.md"
BEGIN, END = "<!-- exports: begin -->", "<!-- exports: end -->"


def row(folder: Path, name: str) -> str:
    """Return the row of a net."""
    with np.load(folder / f"{name}.npz") as arrays:
        x, from_mxnet = arrays["x"], arrays["y"]
    session = clgraft.load(folder / f"{name}-symbol.json")
    (found,) = session.run({"data": x}).values()
    data = session.export(shapes={"data": x.shape})
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    runtime = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (exported,) = runtime.run(None, {"data": x})
    largest = np.abs(from_mxnet).max()
    errors = [
        np.abs(one.astype("f8") - other).max() / largest for one, other in ((found, from_mxnet), (exported, found))
    ]
    nodes = len(onnx.load_from_string(data).graph.node)
    return f"| {name} | {x.shape[-1]} | {errors[0]:.1e} | {errors[1]:.1e} | {nodes} |"


def main() -> None:
    """Put the table into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    lines = [BEGIN, "", f"Device: {core.context().device.name}.", ""]
    lines += ["| net | size | session, MXNet | export, session | nodes |", "|---|---|---|---|---|"]
    for name in sorted({**NETS, **OTHERS}):
        lines.append(row(folder, name))
        print(lines[-1], flush=True)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + "\n".join([*lines, "", END]) + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
