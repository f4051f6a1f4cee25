"""Who imports whom, read from the imports themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# folder -> folders of ours that it may import
MAY_IMPORT = {
    "core": set(),
    "mxnet_ops": {"core"},
    "caffe_layers": {"core"},
    "plugins": {"core", "mxnet_ops", "caffe_layers"},
}
FRAMEWORKS = {"mxnet", "caffe", "torch", "onnx", "tensorflow"}
MAY_IMPORT_FRAMEWORK = {
    "core": set(),
    "mxnet_ops": {"mxnet"},
    "caffe_layers": {"caffe"},
    "plugins": {"mxnet", "caffe", "torch"},  # torch is a peer of the benchmarks
}


def imports(path: Path):
    """Yield (line, dotted name) of every import in a file, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "." * node.level + (node.module or "")
            else:
                for alias in node.names:
                    yield node.lineno, f"{node.module}.{alias.name}"


def files(folder: str):
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_directions(folder):
    wrong = []
    for path in files(folder):
        for line, name in imports(path):
            place = f"{path.relative_to(ROOT)}:{line} imports {name}"
            parts = name.split(".")
            if name.startswith("."):
                wrong.append(f"{place}, expected an absolute name")
            elif parts[0] in MAY_IMPORT:
                wrong.append(f"{place}, expected clgraft.{name}")
            elif parts[0] == "clgraft":
                if parts[1] in MAY_IMPORT and parts[1] != folder and parts[1] not in MAY_IMPORT[folder]:
                    wrong.append(f"{place}, which stands above {folder}")
            elif parts[0] in FRAMEWORKS - MAY_IMPORT_FRAMEWORK[folder]:
                wrong.append(f"{place}, a framework that is not {folder}'s")
    assert not wrong, "\n".join(wrong)
    assert files(folder)


def test_kernels_hold_opencl_only():
    kinds = {
        path.suffix for path in (ROOT / "kernels").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert kinds <= {".cl", ".h", ".py"}
    assert {path.name for path in (ROOT / "kernels").rglob("*.py")} <= {"__init__.py"}


def test_no_kernels_inside_python():
    """OpenCL C stands in files: the words that start a kernel occur in no string of the package."""
    for folder in MAY_IMPORT:
        for path in files(folder):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert "__kernel void" not in node.value, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_swap_tools_need_no_framework():
    """Importing the registry and both sides' tools must not load a framework."""
    import subprocess
    import sys

    script = (
        "import sys; import clgraft.plugins, clgraft.plugins.command_line, clgraft.caffe_layers.swap;"
        "clgraft.plugins.plugins();"
        "sys.exit(bool({'mxnet', 'caffe'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
