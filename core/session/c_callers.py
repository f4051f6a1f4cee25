"""Answers the C runtime's questions to Python: make a context, plan a problem or a graph, ask a module."""

from __future__ import annotations

import importlib
import traceback
from typing import Any

from clgraft.core.errors import ArgumentError, BuildError, ClgraftError, DeviceError, ExecutionError, ProblemError
from clgraft.core.problem import parse
from clgraft.core.session.context import Context
from clgraft.core.session.contexts import adopt


def status_of(error: BaseException, lib: Any) -> int:
    """Return the ABI's status for a Python error."""
    if isinstance(error, ExecutionError) and error.status:
        return error.status
    if isinstance(error, ProblemError):
        return lib.CLG_INVALID_PROBLEM
    if isinstance(error, (ArgumentError, DeviceError)):
        return lib.CLG_INVALID_ARGUMENT
    if isinstance(error, BuildError):
        return lib.CLG_OPENCL_ERROR
    return lib.CLG_PLANNER_ERROR


def serve(ffi: Any, lib: Any) -> None:
    """Let Python answer a runtime's `clg_context_create`, `clg_plan_create`, `clg_graph_create` and `clg_ask`.

    Parameters
    ----------
    ffi, lib : cffi module objects
        Of the extension, or of the embedding `libclgraft.so`: each has its own contexts and plans.
    """
    contexts: dict[int, Any] = {}

    def fail(error: BaseException) -> int:
        text = (
            str(error)
            if isinstance(error, ClgraftError)
            else "".join(traceback.format_exception_only(type(error), error))
        )
        lib.clg_set_error(text.encode())
        return status_of(error, lib)

    @ffi.def_extern(error=lib.CLG_PLANNER_ERROR)
    def clg_py_context_create(selector: Any, cl_context: Any, cl_device: Any, cl_queue: Any, out: Any) -> int:
        try:
            name = words(selector) if selector else None
            if cl_context:
                addresses = [int(ffi.cast("uintptr_t", pointer)) for pointer in (cl_context, cl_device, cl_queue)]
                context = adopt(*addresses, ffi=ffi, lib=lib)
            else:
                context = Context.on(name, ffi=ffi, lib=lib)
            handle = context.handle
            for key in [key for key, known in contexts.items() if not known.alive()]:
                del contexts[key]
            contexts[int(ffi.cast("uintptr_t", handle))] = context
            out[0] = handle
            return lib.CLG_OK
        except Exception as error:
            return fail(error)

    def found(handle: Any) -> Any:
        context = contexts.get(int(ffi.cast("uintptr_t", handle)))
        if context is None:
            raise ClgraftError(f"[plan] got context {handle}, expected one made by clg_context_create")
        return context

    def words(text: Any) -> str:
        return ffi.string(text).decode(errors="replace") if text else ""

    @ffi.def_extern(error=lib.CLG_PLANNER_ERROR)
    def clg_py_plan_create(handle: Any, problem: Any, out: Any) -> int:
        try:
            out[0] = found(handle).assemble(parse(words(problem)))
            return lib.CLG_OK
        except Exception as error:
            return fail(error)

    @ffi.def_extern(error=lib.CLG_PLANNER_ERROR)
    def clg_py_graph_create(handle: Any, text: Any, options: Any, out: Any) -> int:
        try:
            context = found(handle)
            given = {}
            for name in ("gradients", "outputs", "passes", "precision") if options else ():
                if getattr(options, name):
                    given[name] = words(getattr(options, name))
            out[0] = context.assemble_graph(words(text), **given)
            return lib.CLG_OK
        except Exception as error:
            return fail(error)

    @ffi.def_extern(error=lib.CLG_PLANNER_ERROR)
    def clg_py_ask(module: Any, question: Any, size: Any, receive: Any, with_: Any) -> int:
        try:
            answer = importlib.import_module(words(module)).answer(bytes(ffi.buffer(question, size)))
            receive(with_, ffi.from_buffer(answer), len(answer))
            return lib.CLG_OK
        except Exception as error:
            return fail(error)
