"""The documentation names files and functions that exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FOLDERS = "core|kernels|mxnet_ops|caffe_layers|plugins|tests|benchmarks|examples|docs|clgraft"
PLACE = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)`")
STEP = re.compile(rf"^\| \d+ \| `((?:{FOLDERS})/[\w./-]+)` \| `(\w+)` \|", re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_places_exist(page: Path):
    missing = [
        place
        for place in PLACE.findall(page.read_text(encoding="utf-8"))
        if "NAME" not in place and not (ROOT / place).exists()
    ]
    assert not missing


@pytest.mark.parametrize("parent", ["core", "core/operators/conv", "mxnet_ops", "caffe_layers", "plugins"])
def test_the_map_has_every_folder(parent: str):
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    folders = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / parent).glob("*/__init__.py")}
    assert folders and [folder for folder in sorted(folders) if f"`{folder}/`" not in text] == []


def test_the_worked_example_names_what_is_there():
    steps = STEP.findall((ROOT / "docs" / "design.md").read_text(encoding="utf-8"))
    assert len(steps) >= 10
    missing = []
    for place, name in steps:
        defined = rf"^ *(?:def|class|kernel void|bool|int|clg_status) +{name}\b"
        if not re.search(defined, (ROOT / place).read_text(encoding="utf-8"), re.M):
            missing.append(f"{place}: {name}")
    assert not missing


def test_every_page_of_operators_says_what_types_of_16_bits_do():
    pages = sorted((ROOT / "docs" / "operators").glob("*.md"))
    types = {page.name: set(re.findall(r"\bb?float16\b", page.read_text(encoding="utf-8"))) for page in pages}
    assert len(pages) > 10 and [name for name, found in types.items() if found != {"float16", "bfloat16"}] == []


def test_every_environment_variable_is_documented():
    used = set()
    for folder in ("core", "mxnet_ops", "caffe_layers", "plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            used |= set(re.findall(r"""["'`](CLGRAFT_[A-Z]+)\b""", path.read_text(encoding="utf-8")))
        for path in (ROOT / folder).rglob("*.c"):
            used |= set(re.findall(r'getenv\("(CLGRAFT_[A-Z]+)"', path.read_text(encoding="utf-8")))
    assert {"CLGRAFT_DEVICE", "CLGRAFT_PYTHON"} <= used
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert [name for name in sorted(used) if f"| `{name}` |" not in text] == []


@pytest.mark.parametrize("package", ["core", "mxnet_ops", "caffe_layers", "caffe_layers/swap"])
def test_every_public_name_is_in_the_reference(package: str):
    tree = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))
    values = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in ("__all__", "LAYERS")
    }
    page = (ROOT / "docs" / "api" / f"{package.split('/')[0]}.md").read_text(encoding="utf-8")
    names = [name for public in values.values() for name in public]
    assert len(names) > 5
    if "automodule:: clgraft." + package.replace("/", ".") + "\n   :members:" not in page:
        assert [name for name in names if not re.search(rf"\b{name}\b", page)] == []


def test_lines_fit_the_screen():
    long = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 120
    ]
    assert not long


def test_every_extra_is_in_the_table_of_the_installation():
    section = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("[project.optional-dependencies]\n")[1]
    extras = re.findall(r"^(\w+) = \[", section.split("\n[")[0], re.M)
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    table = page.split("| extra | installs |\n|---|---|\n")[1].split("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.M)) == sorted(extras) and "torch" in extras
    assert "https://download.pytorch.org/whl/cpu" in page


SITE = """
import importlib.util, runpy, sys, types
sys.modules["sphinx"] = types.ModuleType("sphinx")
sys.modules["sphinx.errors"] = types.ModuleType("sphinx.errors")
sys.modules["sphinx.errors"].ConfigError = SystemExit
importlib.util.find_spec = lambda name: None if name in {absent!r} else object()
runpy.run_path({conf!r})
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the site is built with Python 3.11")
@pytest.mark.parametrize("absent", [("mxnet",), ("furo", "myst_nb"), ()])
def test_a_site_without_its_packages_says_which_are_missing(absent):
    code = SITE.format(absent=absent, conf=str(ROOT / "docs" / "conf.py"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    expected = f'clgraft: got no {", ".join(absent)}, expected what pip install ".[docs]" brings\n' if absent else ""
    assert (done.returncode, done.stderr) == (int(bool(absent)), expected)


def test_the_extra_of_the_site_holds_what_its_configuration_needs():
    (listed,) = re.findall(r"^docs = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    conf = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    needed = ast.literal_eval(re.search(r"^NEEDED = (.*)$", conf, re.M)[1])
    for name in needed:
        packages = [name.replace("_", "-"), f"clgraft[{name}]"]
        assert any(re.search(rf'"{re.escape(package)}(?:[>;])', listed) for package in packages), name


def test_the_first_page_leads_by_question():
    """One example, one plot and a guide for each framework; the full contents are in the sidebar only."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert text.count("```{toctree}") == text.count("\n:hidden:\n") > 0
    shown = text.split("```{toctree}")[0]
    assert len(re.findall(r"^## .*\?$", shown, re.M)) == 3 and len(shown.splitlines()) < 70
    assert shown.count("```python") == shown.count("![") == 1
    for guide in ("mxnet", "caffe", "onnx", "pytorch", "install", "devices", "performance", "tuning"):
        assert f"]({guide}.md" in shown, guide
