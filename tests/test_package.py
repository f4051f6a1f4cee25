"""The package as others get it: a regular package with one version, found from any folder, never built in part."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import clgraft
from clgraft.core import abi

ROOT = Path(__file__).resolve().parent.parent
SUBPACKAGES = ("core", "kernels", "mxnet_ops", "caffe_layers", "plugins")


def python(*arguments: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    """Run this Python with arguments."""
    words = [sys.executable, *map(str, arguments)]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment})


def sources(target: Path) -> Path:
    """Copy what the package is made of, without anything that was built."""
    unwanted = shutil.ignore_patterns("*.so", "_runtime.c", "_calls.c", "__pycache__", "*.egg-info")
    for name in ("clgraft", *SUBPACKAGES):
        shutil.copytree(ROOT / name, target / name, ignore=unwanted)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    return target


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder laid out as in site-packages, with the C extensions of this tree."""
    folder = tmp_path_factory.mktemp("site") / "clgraft"
    folder.mkdir()
    shutil.copy(ROOT / "clgraft" / "__init__.py", folder)
    for name in SUBPACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder.parent


def test_a_regular_package_with_types():
    assert clgraft.__file__ is not None
    assert Path(clgraft.__file__).name == "__init__.py"
    assert Path(clgraft.__file__).with_name("py.typed").exists()


def test_one_version_everywhere():
    major, minor, patch = map(int, re.match(r"(\d+)\.(\d+)\.(\d+)", clgraft.__version__).groups())
    assert abi.lib.clg_version() == major * 10000 + minor * 100 + patch, (
        "the C runtime is of another version: make install"
    )
    shown = python("-m", "clgraft.plugins.command_line", "--version")
    assert shown.stdout.split() == ["clgraft", clgraft.__version__], shown.stderr
    assert importlib.metadata.version("clgraft") == clgraft.__version__


def test_the_version_is_written_once():
    """A second place that states the version would sooner or later state another one."""
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("clgraft", *SUBPACKAGES)
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(rf"""["']{re.escape(clgraft.__version__)}["']""", line)
    ]
    assert [place.split(":")[0] for place in wrong] == ["clgraft/__init__.py"]
    assert not re.search(r"^version\s*=\s*\"", (ROOT / "pyproject.toml").read_text(), re.M)


def test_a_folder_named_clgraft_shadows_no_installed_package(installed, tmp_path):
    """The parent folder of a checkout is a natural place to start Python in."""
    sources_of_another = tmp_path / "clgraft"
    sources_of_another.mkdir()
    sources(sources_of_another)
    code = "import clgraft.core, clgraft.plugins; print(clgraft.__version__, clgraft.core.__file__)"
    done = python("-c", code, cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [clgraft.__version__, str(installed / "clgraft" / "core" / "__init__.py")]


def test_a_checkout_that_was_not_built_says_so(tmp_path):
    done = python("-c", "import clgraft.core.abi", cwd=sources(tmp_path), PYTHONPATH="")
    assert done.returncode == 1
    assert f"ImportError: [abi] got no compiled clgraft.core.abi._runtime in {tmp_path}/core/abi" in done.stderr
    assert "make install" in done.stderr


def test_a_checkout_imports_its_own_folders(tmp_path):
    code = "import clgraft.kernels as k, clgraft; print(clgraft.__version__, k.__path__[0])"
    done = python("-c", code, cwd=sources(tmp_path), PYTHONPATH="")
    assert done.stdout.split() == [clgraft.__version__, str(tmp_path / "kernels")], done.stderr


def setup(folder: Path, *arguments: str, cffi: bool = True) -> subprocess.CompletedProcess:
    """Run setup.py, as pip does, in a Python that has cffi or has none."""
    hide = "" if cffi else "sys.modules['cffi'] = None; "
    code = (
        f"import runpy, sys; {hide}sys.argv[1:] = {list(arguments)!r}; runpy.run_path('setup.py', run_name='__main__')"
    )
    return python("-c", code, cwd=folder)


def test_a_build_without_cffi_fails(tmp_path):
    pytest.importorskip("setuptools")
    done = setup(sources(tmp_path), "bdist_wheel", cffi=False)
    assert done.returncode != 0
    assert "[setup] got no cffi" in done.stderr
    assert "expected cffi" in done.stderr
    assert not list(tmp_path.rglob("*.whl"))


def test_a_source_distribution_is_complete(tmp_path):
    """What a wheel is built from: every source of the package, the licence, and nothing that was built."""
    pytest.importorskip("setuptools", minversion="77")
    done = setup(sources(tmp_path), "-q", "sdist")
    assert done.returncode == 0, done.stderr
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    assert archive.name == f"clgraft-{clgraft.__version__}.tar.gz"
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    expected = {
        path.relative_to(tmp_path).as_posix()
        for folder in ("clgraft", *SUBPACKAGES)
        for path in (tmp_path / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected | {"LICENSE", "README.md", "pyproject.toml", "setup.py"} <= names
    assert not [name for name in names if name.endswith(".so")]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_an_editable_install_is_not_shadowed_either(tmp_path):
    """It is a path entry that holds the regular package, so the search for `clgraft` ends there."""
    pytest.importorskip("setuptools", minversion="77")
    (tmp_path / "checkout").mkdir()
    checkout = sources(tmp_path / "checkout")
    done = setup(checkout, "-q", "editable_wheel", "--dist-dir", str(tmp_path / "dist"))
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    (tmp_path / "clgraft").mkdir()
    sources(tmp_path / "clgraft")
    code = f"import site; site.addsitedir({str(tmp_path / 'site')!r}); import clgraft.core.abi as a; print(a.__file__)"
    # without a folder of clgraft's on the path but that one
    others = [entry for entry in sys.path if entry and not Path(entry, "clgraft").exists()]
    done = python("-S", "-c", f"import sys; sys.path += {others!r}; {code}", cwd=tmp_path, PYTHONPATH="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(checkout / "core" / "abi" / "__init__.py")
