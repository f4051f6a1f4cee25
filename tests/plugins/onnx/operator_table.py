"""The table of ONNX's operators in docs/onnx.md: ``python -m tests.plugins.onnx.operator_table`` writes it anew."""

from __future__ import annotations

from pathlib import Path

import onnx

from clgraft.plugins.onnx.folding import RANDOM
from clgraft.plugins.onnx.loading import load  # noqa: F401  fills the table of operators
from clgraft.plugins.onnx.nodes import lowered_operators, lowering_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "onnx.md"
BEGIN, END = "<!-- operators: begin -->", "<!-- operators: end -->"
KINDS = {
    "runs": "on the device",
    "follows": "on the device, by its definition in terms of other operators",
    "folded": "on the host, from elements that are known or read back",
    "branches": "unrolled: conditions and counts are known or read back",
    "refused": "refused by name",
}
WIDTH = 118


def kind_of(name: str) -> str:
    """Return what happens to an operator."""
    lowering = lowering_of(name)
    if lowering is not None:
        module = lowering.__module__.rpartition(".")[2]
        return "branches" if module == "control" else "folded" if lowering.__name__ == "folded" else "runs"
    schema = onnx.defs.get_schema(name)
    if name in (*RANDOM, "SequenceMap") or not (schema.has_function or schema.has_context_dependent_function):
        return "refused"
    if schema.has_function:
        body = {node.op_type for node in schema.function_body.node}
        return "follows" if body <= {*lowered_operators(), name} else "refused"
    return "follows"


def table() -> str:
    """Return the table for the installed onnx."""
    names = sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""})
    by_kind: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for name in names:
        by_kind[kind_of(name)].append(name)
    version = ".".join(onnx.__version__.split(".")[:2])
    lines = [BEGIN, "", f"onnx {version}, {len(names)} operators of opset {onnx.defs.onnx_opset_version()}:", ""]
    for kind, text in KINDS.items():
        lines += [f"**{len(by_kind[kind])} {text}**:", "", *_wrapped(by_kind[kind]), ""]
    return "\n".join([*lines, END])


def _wrapped(words: list[str]) -> list[str]:
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) > WIDTH:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def main() -> None:
    """Put the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + table() + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
