"""Every snippet of README and of the guides is executed, or an invisible comment above it says why it is not.

Snippets of Python run page by page and framework by framework in one namespace, in their order, with the small models
of `stand_ins`; those of a framework that this Python lacks run in another one. Commands of `clgraft` run on such
models, too, where that takes seconds; the options of the others are read. C is compiled.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from clgraft import core
from clgraft.plugins.command_line.main import build_parser, main
from tests.snippets.pages import NEEDS, ROOT, Snippet, snippets
from tests.snippets.stand_ins import C_PROGRAM, NAMESPACES

ALL = [snippet for snippet in snippets() if not snippet.reason]
PYTHON = list(dict.fromkeys((one.page, one.framework) for one in ALL if one.language == "python"))
SHELL = [one for one in ALL if one.language == "sh"]
C = [one for one in ALL if one.language == "c"]
# commands that run on stand-ins; the others measure or search for minutes, train, or need a model of a reader's
RUN = ("devices", "cache", "swap", "run")


def named(snippet: Snippet) -> str:
    return f"{snippet.page}:{snippet.line}"


def commands(snippet: Snippet) -> list[list[str]]:
    """Return the words of each command of a snippet, without comments, redirections and settings of the environment."""
    lines = snippet.code.replace("\\\n", " ").splitlines()
    words = [shlex.split(re.sub(r"\s>\s*\S+", " ", line), comments=True) for line in lines]
    return [each for each in (_without_settings(line) for line in words) if each]


def _without_settings(words: list[str]) -> list[str]:
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    return words


def available(framework: str) -> bool:
    return not framework or importlib.util.find_spec(framework) is not None


def test_every_snippet_has_a_test():
    known = {"python", "sh", "c", "text"}  # text is no code
    assert [named(one) for one in ALL if one.language not in known] == []
    assert {framework for _, framework in PYTHON} == {"", *NEEDS}
    assert len(SHELL) > 15 and len(C) >= 2


def test_reasons_are_given_for_what_is_not_executed():
    left = [one for one in snippets() if one.reason]
    assert [named(one) for one in left if len(one.reason.split()) < 4] == []
    assert [named(one) for one in left if one.language == "python"] == []


@pytest.mark.parametrize("name", ["MXNet", "Caffe"])
def test_the_first_examples_of_a_framework_need_none(name: str):
    """In README and in the guide: pip install alone has to do."""
    for page, heading in (("README.md", f"## {name}"), (f"docs/{name.lower()}.md", "## Without the framework")):
        lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
        begin = lines.index(heading)
        first = next(one for one in ALL if one.page == page and one.line > begin)
        assert (first.language, first.framework) == ("python", "") and "clgraft.load(" in first.code, named(first)


@pytest.mark.parametrize(("page", "framework"), PYTHON, ids=[f"{page}-{name or 'core'}" for page, name in PYTHON])
def test_python_runs(page: str, framework: str, tmp_path, monkeypatch):
    if not available(framework):
        pytest.skip(f"needs {framework}")
    monkeypatch.chdir(tmp_path)
    namespace = NAMESPACES[framework]()
    here = '"cpu"' if core.context().device.is_cpu else '"gpu"'  # a machine for tests may have one of them only
    for one in ALL:
        if (one.page, one.framework, one.language) == (page, framework, "python"):
            code = compile("\n" * one.line + re.sub(r'"[cg]pu"', here, one.code), str(ROOT / page), "exec")
            exec(code, namespace)


@pytest.mark.parametrize("snippet", SHELL, ids=named)
def test_commands_are_known(snippet: Snippet):
    """Options are read by the command's parser, and what is called exists."""
    for program, *words in commands(snippet):
        if program == "clgraft":
            if words[0] == "caffe" and not _has_command("caffe"):
                continue
            build_parser().parse_args(words)
        elif program == "make":
            targets = [word for word in words if "=" not in word]
            text = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert targets and all(re.search(rf"^{target}:", text, re.M) for target in targets), words
        elif program == "python" and words[0] == "-m":
            assert importlib.util.find_spec(words[1]), words
        elif program == "python":
            options = {word.split("=")[0] for word in words[1:] if word.startswith("-")}
            text = (ROOT / words[0]).read_text(encoding="utf-8")
            assert all(f'"{option}"' in text for option in options), words
        else:
            assert program == "export", f"{named(snippet)}: {program} is not executed, and no comment says why"


def _has_command(name: str) -> bool:
    return f" {name} " in build_parser().format_help()


QUICK = [(one, words) for one in SHELL for words in commands(one) if words[0] == "clgraft" and words[1] in RUN]


@pytest.mark.parametrize(("page", "what"), list(dict.fromkeys((one.page, words[1]) for one, words in QUICK)))
def test_quick_commands_run(page: str, what: str, tmp_path, monkeypatch, capfd):
    framework = {"run": "onnx"}.get(what, "")
    if not available(framework):
        pytest.skip(f"needs {framework}")
    monkeypatch.chdir(tmp_path)
    NAMESPACES[framework]()
    for one, words in QUICK:
        if (one.page, words[1]) == (page, what):
            assert main([*words[1:], *(["--force"] if what == "swap" else [])]) == 0, (words, capfd.readouterr().err)


@pytest.mark.parametrize("snippet", C, ids=named)
def test_c_compiles(snippet: Snippet, tmp_path: Path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    program = tmp_path / "snippet.c"
    program.write_text(C_PROGRAM % snippet.code)
    command = [compiler, "-fsyntax-only", "-Wall", "-Werror", f"-I{ROOT / 'core' / 'abi'}", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
