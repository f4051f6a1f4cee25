"""`clg_ask`: a library's question to a Python module of its own."""

from __future__ import annotations

import concurrent.futures
import sys
import types

import pytest

import clgraft.core  # noqa: F401  which answers
from clgraft.core.abi import ffi, lib
from clgraft.core.errors import ProblemError

MODULE = "a_module_that_is_asked"


def ask(question: bytes, module: bytes = MODULE.encode()) -> tuple[int, list[bytes], str]:
    """Return the status, the answers that were received, and the message."""
    answers: list[bytes] = []

    @ffi.callback("void(void *, const void *, uint64_t)")
    def receive(_, answer, size) -> None:
        answers.append(bytes(ffi.buffer(answer, size)))

    status = lib.clg_ask(module, ffi.from_buffer(question), len(question), receive, ffi.NULL)
    return status, answers, ffi.string(lib.clg_last_error()).decode()


@pytest.fixture
def module(monkeypatch):
    found = types.ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, found)
    return found


@pytest.mark.parametrize("question", [b"", b"some\0bytes\xff"])
def test_the_answer_is_received_once(module, question):
    module.answer = lambda asked: b"<" + asked + b">"
    assert ask(question)[:2] == (lib.CLG_OK, [b"<" + question + b">"])


def test_an_error_is_the_status_and_the_message(module):
    def answer(_):
        raise ProblemError("[asked] got nonsense, expected sense")

    module.answer = answer
    assert ask(b"x") == (lib.CLG_INVALID_PROBLEM, [], "[asked] got nonsense, expected sense")


def test_a_module_that_is_not_there():
    status, answers, message = ask(b"x", b"no_such_module_of_anybody")
    assert (status, answers) == (lib.CLG_PLANNER_ERROR, []) and "no_such_module_of_anybody" in message


def test_missing_arguments_are_named(module):
    module.answer = lambda asked: asked
    keep = ffi.callback("void(void *, const void *, uint64_t)", lambda *_: None)
    assert lib.clg_ask(ffi.NULL, b"x", 1, ffi.NULL, ffi.NULL) == lib.CLG_INVALID_ARGUMENT
    assert ffi.string(lib.clg_last_error()) == b"[ask] got module NULL, expected all of them"
    assert lib.clg_ask(MODULE.encode(), b"x", 1, ffi.NULL, ffi.NULL) == lib.CLG_INVALID_ARGUMENT
    assert ffi.string(lib.clg_last_error()) == b"[ask] got receive NULL, expected all of them"
    assert lib.clg_ask(MODULE.encode(), ffi.NULL, 1, keep, ffi.NULL) == lib.CLG_INVALID_ARGUMENT
    assert ffi.string(lib.clg_last_error()) == b"[ask] got question NULL, expected all of them"


@pytest.mark.parametrize("answer", [None, "text", 7, [b"x"]])
def test_an_answer_that_is_not_bytes_is_an_error(module, answer):
    module.answer = lambda asked: answer
    status, answers, message = ask(b"x")
    assert (status, answers) == (lib.CLG_PLANNER_ERROR, []) and "Error" in message


def test_a_module_without_an_answer_and_names_that_are_none(module):
    for name in (MODULE.encode(), b"", b".relative", b"\xff"):
        status, answers, message = ask(b"x", name)
        assert (status, answers) == (lib.CLG_PLANNER_ERROR, []) and "Error" in message, name


def test_an_answer_may_ask(module):
    module.answer = lambda asked: asked + (ask(asked[1:])[1][0] if asked else b".")
    assert ask(b"abc")[:2] == (lib.CLG_OK, [b"abcbcc."])


def test_threads_ask_at_the_same_time(module):
    module.answer = lambda asked: asked * 2
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        questions = [str(i).encode() * 50 for i in range(200)]
        assert [found[1] for found in pool.map(ask, questions)] == [[one * 2] for one in questions]
