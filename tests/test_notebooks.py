"""Execute the notebooks of docs/notebooks, whose cells assert that both nets agree."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
NEEDS = {
    **{"caffe": ("caffe",), "mxnet": ("mxnet",), "onnx": ("onnx", "onnxruntime"), "torch": ("torch",)},
    **{"caffe_models": (), "mxnet_models": ()},  # they need no framework
}


def test_every_notebook_is_executed_here():
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == sorted(NEEDS)


@pytest.mark.notebook
@pytest.mark.parametrize("framework", NEEDS)
def test_notebook_runs_without_error(framework: str, tmp_path: Path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    missing = [package for package in NEEDS[framework] if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")
    notebook = nbformat.read(NOTEBOOKS / f"{framework}.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in code), "the notebook was committed with outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert all(cell.execution_count for cell in code)
    assert "ratio" in code[-1].outputs[0].text
