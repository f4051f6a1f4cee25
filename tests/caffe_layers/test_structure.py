"""How the Caffe side is built: no import cycle, no formula, one text for one idea."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "caffe_layers"
# a call of OpenCL's mathematics, or an assignment with arithmetic
FORMULA = re.compile(r"\b(exp|expm1|log|log1p|sqrt|pow|fabs|fmax|fmin|tanh)\(|=[^={}]*[\w)] [*/] [\w(]")


def module_of(path):
    parts = ["clgraft", "caffe_layers", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports():
    """Return for every module those of caffe_layers that it imports, wherever in its text."""
    files = {module_of(path): path for path in ROOT.rglob("*.py")}
    found = {}
    for module, path in files.items():
        names = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= {name if name in files else node.module for name in inner}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        found[module] = (names & set(files)) - {module}
    return found


def test_no_import_cycle():
    graph = imports()
    assert "clgraft.caffe_layers.prototxt" in graph["clgraft.caffe_layers.prototxt.schema"]
    while graph:
        free = {module for module, names in graph.items() if not names & set(graph)}
        assert free, f"a cycle among {sorted(graph)}"
        graph = {module: names for module, names in graph.items() if module not in free}


def test_layers_hold_no_formulas():
    """Formulas stand in core/nn and core/operators/pointwise/formulas; docstrings alone say what they are."""
    for path in (ROOT / "layers").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        told = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
                text = node.value
                # the error text of OclPointwise shows an expression as an example
                assert not FORMULA.search(text) or "JSON such as" in text, f"{path.name}:{node.lineno}: {text}"


def test_marks_stand_once():
    texts = [path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")]
    assert sum("# clgraft force_backward" in text for text in texts) == 1


def test_the_schema_keeps_its_public_name():
    from clgraft.caffe_layers import prototxt, schema

    assert prototxt.schema is schema
