"""What a terminal shows and a pipe does not: progress with the remaining time, and drawn tables."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TextIO

from clgraft.core.runtime import building

RIGHT, LEFT = "right", "left"


class Progress:
    """A progress bar with the remaining time below the lines that are printed; in a pipe only the lines.

    Parameters
    ----------
    output : TextIO
        Where the lines go.
    total : int, optional
        How much there is to do; without it the bar only shows what is done.
    still : bool
        Draw only when something is shown or printed: no thread disturbs what is measured in this process.
    """

    def __init__(self, output: TextIO, total: int | None = None, still: bool = False) -> None:
        self.output, self._still = output, still
        # the bar is drawn below the lines, or alone on stderr where the lines go to a pipe
        self._stream = next((stream for stream in (output, sys.stderr) if stream.isatty()), None)
        self._bar: Any = None
        self._total = total
        self._task: Any = None
        self._silence = contextlib.ExitStack()  # of the line that tells of built kernels

    @property
    def drawn(self) -> bool:
        """Return whether there is a terminal to draw on."""
        return self._stream is not None

    def __enter__(self) -> Progress:
        if self._stream is not None:
            self._silence.enter_context(building.silenced())
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = [TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn()]
            self._bar = Bar(
                *columns,
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("after"),
                TimeElapsedColumn(),
                console=Console(file=self._stream),
                transient=True,
                auto_refresh=not self._still,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._silence.close()

    def show(self, description: str, done: int | None = None, total: int | None = None) -> None:
        """Show what is being done, and how much is done already."""
        if self._bar is not None:
            text = description if len(description) <= 60 else description[:57] + "..."
            self._bar.update(self._task, description=text, completed=done, total=total, refresh=self._still)

    def print(self, line: str) -> None:
        """Print a line."""
        if self._bar is not None and self._stream is self.output:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=self.output, flush=True)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], output: TextIO, align: Sequence[str] = ()) -> None:
    """Print a table: drawn on a terminal, lines of columns in a pipe.

    Parameters
    ----------
    heads : sequence of str
    rows : sequence of sequence of str
    output : TextIO
    align : sequence of str
        `RIGHT` or `LEFT` of each column; left by default.
    """
    sides = [*align, *[LEFT] * (len(heads) - len(align))]
    if output.isatty():
        from rich.console import Console
        from rich.table import Table

        drawn = Table()
        for head, side in zip(heads, sides):
            drawn.add_column(head, justify="right" if side == RIGHT else "left", overflow="fold")
        for row in rows:
            drawn.add_row(*map(_literal, row))
        Console(file=output).print(drawn)
        return
    widths = [max(len(line[i]) for line in (heads, *rows)) for i in range(len(heads))]
    for line in (heads, *rows):
        cells = [text.rjust(n) if side == RIGHT else text.ljust(n) for text, n, side in zip(line, widths, sides)]
        print("  ".join(cells).rstrip(), file=output)
    output.flush()


def _literal(text: str) -> Any:
    from rich.text import Text

    return Text(text)


def nbytes(count: float) -> str:
    """Return a number of bytes for people."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def plural(count: int, noun: str, several: str = "") -> str:
    """Return a number with its noun: ``1 problem``, ``2 problems``."""
    return f"{count} {noun}" if count == 1 else f"{count} {several or noun + 's'}"
