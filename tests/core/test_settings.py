"""Environment variables: one table, which the documentation repeats, and errors that name what is allowed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest

from clgraft.core import ArgumentError, settings
from clgraft.core.graph import passes
from tests.folders import ROOT

PACKAGES = ("core", "mxnet_ops", "caffe_layers", "plugins", "clgraft")
SCRIPTS = ("benchmarks", "examples")  # they set some for what they start
SETTINGS = "core/settings.py"
# files that read variables without `core.settings`, and why
APART = {
    "plugins/caffe/embedded/sitecustomize.py": "finds out where clgraft can be imported from, before it can be",
}
OF_THE_SYSTEM = {"HOME", "LD_PRELOAD", "PATH"}
TOOLCHAINS = "core/runtime/toolchains/"  # know the variables of drivers
READ_BY_C = (settings.VERBOSE, settings.COPY_THREADS, settings.UPDATE_THREADS)


def table() -> str:
    """Return the table of the documentation."""
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    return text.split("## Environment variables")[1].split("\n\n")[1]


def test_the_documentation_has_the_table():
    """`clgraft settings --markdown` prints it."""
    assert table() == settings.markdown()
    for setting in settings.ALL:
        if setting.documented and setting.default:
            assert f"`{setting.default}` (default)" in setting.values, setting.name
        if setting.documented and not any(word in setting.expected for word in ("a name", "names", "types", "blobs")):
            for word in re.findall(r"`([^`]+)`", setting.values):  # where they do not vary
                setting.parse(word)


def test_the_passes_are_those_of_graphs():
    assert settings.GRAPH_PASSES == passes.NAMES


def test_whatever_is_read_is_in_the_table():
    """C reads some, and the others are read by `core.settings` alone."""
    found = set()
    for package in (*PACKAGES, *SCRIPTS):
        for path in (ROOT / package).rglob("*"):
            if path.suffix not in (".py", ".c", ".cpp", ".h") or str(path.relative_to(ROOT)) == SETTINGS:
                continue
            text = path.read_text(encoding="utf-8")
            if package in SCRIPTS:
                text = re.sub(r'environ\["CLGRAFT_\w+"\] = ', "", text)
            read = re.findall(r"""(?:getenv\(|environ\.get\(|environ\[)\s*"(CLGRAFT_[A-Z_]+)""", text)
            found.update(read)
            if path.suffix == ".py" and str(path.relative_to(ROOT)) not in APART:
                assert not read and "environ.get(VARIABLE" not in text, path
            if str(path.relative_to(ROOT)) in APART:
                assert read, f"{path} needs no exception"
    assert found <= {setting.name for setting in settings.ALL}
    assert {setting.name for setting in READ_BY_C} <= found


@pytest.mark.parametrize("package", PACKAGES)
def test_names_are_typed_in_the_table_alone(package):
    """Others take them from there; what runs before clgraft can be imported, or without it, repeats them."""
    wrong = []
    for path in (ROOT / package).rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name == SETTINGS or name in APART:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            typed = isinstance(node, ast.Constant) and re.fullmatch(r"CLGRAFT_[A-Z_]+", str(node.value))
            keyword = isinstance(node, ast.keyword) and re.fullmatch(r"CLGRAFT_[A-Z_]+", node.arg or "")
            if typed or keyword:
                wrong.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def test_variables_of_others_are_in_the_table():
    """Those that packages read and nobody hands to processes alone: compilers', Caffe's, MXNet's, the system's."""
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if path.suffix not in (".py", ".c", ".cpp", ".h") or TOOLCHAINS in path.as_posix():
                continue
            text = path.read_text(encoding="utf-8")
            found.update(re.findall(r"""(?:getenv\(|environ\.get\(|environ\[)\s*["']([A-Z_]+)["'](?!\] =)""", text))
    assert found - OF_THE_SYSTEM <= {setting.name for setting in settings.ALL}


@pytest.mark.parametrize("setting", settings.ALL, ids=lambda setting: setting.name)
def test_defaults_are_values(setting, monkeypatch):
    monkeypatch.delenv(setting.name, raising=False)
    unset = setting.value()
    monkeypatch.setenv(setting.name, "  ")
    assert setting.value() == unset == setting.parse(setting.default)


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (settings.TUNE, " Full ", "full"),
        (settings.PRECISION, "TF32", "tf32"),
        (settings.CACHE_LIMIT, "2 MiB", 2 << 20),
        (settings.CACHE_LIMIT, "OFF", None),
        (settings.BUILD_PROCESSES, "12", 12),
        (settings.BUILD_PROCESSES, "", None),
        (settings.VERBOSE, "plan,run,start", ("plan", "run", "start")),
        (settings.COPY_THREADS, "16", 16),
        (settings.CACHE, "/some where", "/some where"),
    ],
)
def test_what_values_mean(setting, text, value, monkeypatch):
    monkeypatch.setenv(setting.name, text)
    assert setting.value() == value


@pytest.mark.parametrize(
    ("setting", "text", "expected"),
    [
        (settings.TUNE, "fast", r"one of \('off', 'cached', 'full'\)"),
        (settings.PRECISION, "half", r"one of \('float32', 'tf32', 'float16', 'bfloat16'\)"),
        (settings.WINOGRAD, "3", r"one of \('on', 'off', '2', '4'\)"),
        (settings.CACHE_LIMIT, "-1", "bytes such as 512M, or off"),
        (settings.BUILD_PROCESSES, "1.5", "a number of processes up to 9999"),
        (settings.BUILD_PROCESSES, "10000", "a number of processes up to 9999"),
        (settings.VERBOSE, "plans", "words of plan, run and start between commas; nearest: plan"),
        (settings.VERBOSE, "foo", "words of plan, run and start between commas"),
        (settings.VERBOSE, "plan,rnu", "words of plan, run and start between commas; nearest: run"),
        (settings.TUNE, "Cachd", r"one of \('off', 'cached', 'full'\); nearest: cached"),
        (settings.PRECISION, "fp32", r"one of \('float32', 'tf32', 'float16', 'bfloat16'\); nearest: tf32"),
        (settings.GRAPH, "-fodl,chains", r"names of passes \(scales, .*, all\), or -name to switch .*; nearest: fold"),
        (settings.ONNX_LIMITS, "node=5", r"numbers for some of \(.*\), such as nodes=1e6,bytes=8e9; nearest: nodes"),
        (settings.COPY_THREADS, "17", "a number from 1 to 16"),
        (settings.UPDATE_THREADS, "all", "a number from 1 to 64"),
    ],
)
def test_wrong_values_name_what_is_allowed(setting, text, expected, monkeypatch):
    monkeypatch.setenv(setting.name, text)
    with pytest.raises(ArgumentError, match=rf"^\[\w+\] got {setting.name}='{re.escape(text)}', expected {expected}$"):
        setting.value()


def python(program: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


# a value that is wrong for each setting that can have one
WRONG = {
    settings.CACHE_LIMIT: "much",
    settings.BUILD_PROCESSES: "-1",
    settings.TUNE: "foo",
    settings.VERBOSE: "foo",
    settings.PRECISION: "foo",
    settings.WINOGRAD: "3",
    settings.GRAPH: "foo",
    settings.MXNET_REPAIRS: "foo",
    settings.COPY_THREADS: "foo",
    settings.UPDATE_THREADS: "0",
    settings.ONNX_LIMITS: "foo",
}


def test_all_that_can_be_wrong_are_tried():
    assert list(WRONG) == [setting for setting in settings.ALL if setting.parse is not str]


@pytest.mark.parametrize("setting", WRONG, ids=lambda setting: setting.name)
def test_the_first_call_raises_for_a_wrong_setting_and_the_import_does_not(setting):
    program = "from clgraft import core\nprint('imported', flush=True)\ncore.context()"
    done = python(program, **{setting.name: WRONG[setting]})
    assert done.returncode and done.stdout == "imported\n"
    assert f"got {setting.name}={WRONG[setting]!r}, expected {setting.expected}" in done.stderr


def test_all_wrong_settings_are_named_at_once(monkeypatch):
    monkeypatch.setenv("CLGRAFT_VERBOSE", "foo")
    monkeypatch.setenv("CLGRAFT_TUNE", "fulll")
    with pytest.raises(ArgumentError) as caught:
        settings.check()
    lines = str(caught.value).splitlines()
    assert [line.partition("=")[0] for line in lines] == ["[tuning] got CLGRAFT_TUNE", "[verbose] got CLGRAFT_VERBOSE"]
    assert lines[0].endswith("; nearest: full")


def test_unknown_names_warn_once_in_a_process_and_its_children():
    program = (
        "import subprocess, sys\nfrom clgraft import core\nfrom clgraft.core import settings\n"
        "settings.warn_of_unknown()\nsubprocess.run([sys.executable, '-c', 'from clgraft import core'], check=True)"
    )
    done = python(program, CLGRAFT_VERBOS="plan", CLGRAFT_TEST_RECORD="", CLGRAFT_PEER_THREADS="")
    assert done.returncode == 0, done.stderr
    said = "[settings] got CLGRAFT_VERBOS, which is no setting, so nothing reads it; nearest: CLGRAFT_VERBOSE"
    assert done.stderr.startswith(said) and done.stderr.count("CLGRAFT_VERBOS,") == 1
    assert len(done.stderr.splitlines()) == 1
