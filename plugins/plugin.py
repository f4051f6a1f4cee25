"""What a plugin can do: swap, check, tune and benchmark the models of one framework, and add commands."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clgraft.core.errors import ClgraftError


class PluginError(ClgraftError, ValueError):
    """Raised for a file or an option that no plugin, or not this one, can serve."""


# what commands and their child processes report in words; any other exception is a fault of ours and has its traceback
REPORTED = (ClgraftError, OSError, MemoryError)


@dataclass(frozen=True)
class SwapRequest:
    """What a user asked for.

    Attributes
    ----------
    source : Path
        The model.
    target : Path or None
        Where the result goes; None asks for its text.
    types, names, exclude : sequence of str or None
        Which operators, in the framework's own words; None means all.
    regions : bool
        Let connected operators run as one graph.
    keep : sequence of str
        Values that regions leave visible, in the framework's own words.
    frozen : bool
        MXNet: let regions take their parameters as constants in inference.
    precision : str or None
        The type of the regions' products.
    native : bool
        Caffe: name the types of clgraft's C++ layers instead of Python layers.
    back : bool
        Restore the framework's own operators.
    root : Path or None
        Where relative paths inside the model start; the working directory by default.
    force : bool
        Overwrite files that clgraft did not write.
    """

    source: Path
    target: Path | None = None
    types: Sequence[str] | None = None
    names: Sequence[str] | None = None
    exclude: Sequence[str] | None = None
    regions: bool = False
    keep: Sequence[str] = ()
    frozen: bool = False
    precision: str | None = None
    native: bool = False
    back: bool = False
    root: Path | None = None
    force: bool = False


@dataclass(frozen=True)
class SwapResult:
    """The report to print, how many operators changed, and the new text if no target was given."""

    report: str
    changed: int
    text: str = ""


@dataclass(frozen=True)
class Task:
    """Work for a child process: a framework that aborts ends only that process.

    Attributes
    ----------
    module : str
        The module whose function does the work.
    arguments : dict
        Keyword arguments of that function; JSON must be able to hold them.
    """

    module: str
    arguments: dict[str, Any] = field(default_factory=dict)


def with_regions(task: Task, regions: bool) -> Task:
    """Return a task whose model is swapped with regions if the user asks for it; others do not get the argument."""
    return Task(task.module, {**task.arguments, "regions": True}) if regions else task


@dataclass(frozen=True)
class Peer:
    """Operators that `clgraft bench` can measure ours against.

    Attributes
    ----------
    name : str
        What the user calls it.
    package : str
        The package that must be installed.
    operators : str
        The module with a function ``sides(case)`` that returns the calls ``native`` and ``clgraft`` of a case, or
        instead of ``native`` one for each of its layouts, and with a text ``MODE``: how they are called. It may have a
        function ``threads()`` that returns the number of threads that the framework computes with.
    nets : tuple of str
        The whole nets that it can measure.
    nets_module : str
        The module with a function ``measure(names, batches, seconds, directions=)`` that yields rows of whole nets, and
        where it cannot measure one the reason (`bench.operators.Missing`). It may have a text ``MODE``, as `operators`
        has.
    nets_package : str
        The package that nets need as well, if any.
    fallback : bool
        Measured by default only where no other peer is installed.
    thread_variables : tuple of str
        Environment variables that set its number of threads, which it reads when it is imported. Without them only
        its default is measured.
    """

    name: str
    package: str
    operators: str
    nets: tuple[str, ...] = ()
    nets_module: str = ""
    nets_package: str = ""
    fallback: bool = False
    thread_variables: tuple[str, ...] = ()


class Plugin:
    """The base class of plugins: one framework's side of the command line.

    A plugin overrides what it can do; by default it does nothing. It is found by an entry point of the group
    ``clgraft.plugins`` that names an instance. Its module must import without its framework.

    Attributes
    ----------
    name : str
        The framework.
    models : str
        Which files it serves, for help texts; empty if it serves none.
    examples : tuple of str
        Command lines for the help text.
    instead : str
        What a user does with models that are not swapped; empty where they are.
    environment : mapping of str to str
        Environment variables that processes with the framework need, unless the user sets them.
    """

    name: str = ""
    models: str = ""
    examples: tuple[str, ...] = ()
    instead: str = ""
    environment: Mapping[str, str] = {}

    def recognises(self, path: Path) -> bool:
        """Return whether a file is this framework's, judged by its path alone."""
        return False

    def swap(self, request: SwapRequest) -> SwapResult:
        """Swap a model, or restore it.

        Raises
        ------
        ClgraftError
            If it cannot be done.
        """
        raise PluginError(f"[swap] got {request.source}, expected a model that plugin {self.name} can swap")

    def add_check_arguments(self, parser: argparse._ActionsContainer) -> None:
        """Add the plugin's own arguments of ``clgraft check``."""

    def check(self, model: Path, options: argparse.Namespace) -> Task:
        """Return the task that checks a swapped model.

        Its module has a function ``rows(**arguments)`` that yields `command_line.check.runner.CheckRow`.

        Parameters
        ----------
        model : Path
        options : argparse.Namespace
            ``repeats`` (how often each operator is timed), ``shapes`` (of inputs, by name), ``regions`` (whether to
            check the model with regions) and the plugin's own arguments.
        """
        raise PluginError(f"[check] got {model}, expected a model that plugin {self.name} can check")

    def problems(self, model: Path, shapes: Mapping[str, Sequence[int]], training: bool) -> Task:
        """Return the task that lists the problems of a model.

        Its module has a function ``problems(**arguments)`` that runs the swapped model and returns the problems that
        it planned. Its argument ``passes``, 1 by default, says how often to run the model;
        ``clgraft profile`` sets it. The argument ``regions`` is set where the user asks for ``--regions``: the model
        is then swapped with regions.

        Parameters
        ----------
        model : Path
        shapes : mapping of str to sequence of int
            Shapes of the inputs that the model itself does not hold.
        training : bool
            Whether to include the gradients.
        """
        raise PluginError(f"[model] got {model}, expected a model whose operators plugin {self.name} can list")

    def peers(self) -> Sequence[Peer]:
        """Return the peers that it brings to ``clgraft bench``."""
        return ()

    def add_commands(self, commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Add commands: ``commands.add_parser(name)`` with the default ``run``, a function of the parsed options.

        `run` returns the exit status. An exception of `REPORTED` is printed without a traceback.
        """
