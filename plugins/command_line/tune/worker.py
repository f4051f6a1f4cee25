"""The child process that searches: a candidate that hangs or crashes ends only this process.

It reads one job as JSON from stdin and writes events, one JSON object a line; what frameworks and drivers print goes to
stderr. Results go to the user's database at once.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from clgraft import core
from clgraft.core.errors import ClgraftError, ProblemError
from clgraft.core.planning.choice import HEURISTIC, Choice
from clgraft.core.problem import Problem
from clgraft.core.tuning.database import Candidate, Database, Timing, Winner
from clgraft.core.tuning.identity import device_class, device_key
from clgraft.core.tuning.search import Effort, Search, choices
from clgraft.plugins.command_line.tune import budget
from clgraft.plugins.plugin import REPORTED

Send = Callable[..., None]


def collect(job: dict[str, Any], send: Send) -> None:
    """Send the problems of a net."""
    found = importlib.import_module(job["module"]).problems(**job["arguments"])
    send(event="problems", problems=[str(problem) for problem in found])


def search(job: dict[str, Any], send: Send) -> None:
    """Search one problem after the other.

    Parameters
    ----------
    job : dict
        ``problems``: texts; ``seconds``: of one problem's candidates; ``final_seconds``; ``rounds``; ``budget``: of all
        problems, or None; ``again``: whether to forget what is known of them; ``only``: by problem, the choices that
        are tried besides the heuristic (without it everything that can be).
    """
    context = core.context()
    database = Database(device_key(context.device))
    send(
        event="device",
        name=str(context.device),
        key=database.device,
        device_class=device_class(context.device),
        units=context.device.compute_units,
    )
    if job["again"]:
        for text in job["problems"]:
            database.forget(text)
    done = {winner.problem: winner for winner in database.winners() if winner.complete}
    end = None if job["budget"] is None else time.monotonic() + job["budget"]
    waiting = [text for text in job["problems"] if text not in done]
    for text in job["problems"]:
        if text in done:
            send(event="winner", kept=True, known=True, **winner_record(done[text]))
            continue
        seconds = job["seconds"]
        if end is not None:
            left = end - time.monotonic()
            if left <= 0:
                return
            seconds = budget.seconds(waiting, left, seconds)
        waiting.remove(text)
        effort = Effort(seconds, job["rounds"], min(job["final_seconds"], seconds))
        _search_one(text, context, database, effort, send, job["only"] and job["only"][text])


def _search_one(
    text: str, context: Any, database: Database, effort: Effort, send: Send, only: Sequence[str] | None
) -> None:
    known = database.candidates(text)
    send(event="problem", problem=text, known=sum(choice != HEURISTIC for choice in known))

    def trying(choice: Choice) -> None:
        send(event="trying", choice=str(choice))

    try:
        problem = core.parse(text)
        wanted = None if only is None else _offered(only, problem, context)
        search = Search(problem, context, known, effort, trying, wanted)
        for candidate in search.run():
            kept = database.add(text, candidate)
            send(event="candidate", kept=kept, **candidate_record(candidate))
    except (ClgraftError, MemoryError) as error:
        send(event="failed", problem=text, reason=f"{type(error).__name__}: {error}")
        return
    if search.winner is None:
        send(event="failed", problem=text, reason=_why_not(search.heuristic))
    else:
        kept = database.finish(search.winner)
        send(event="winner", kept=kept, **winner_record(search.winner))


def _offered(only: Sequence[str], problem: Problem, context: core.Context) -> set[Choice]:
    """Return those of some choices that can be tried for a problem; raise `ProblemError` if none can."""
    found = set(map(Choice.parse, only)) & set(choices(problem, context))
    if not found:
        raise ProblemError(f"[tune] got {', '.join(only)}, expected a choice that clgraft has for it on this device")
    return found


def _why_not(heuristic: Candidate | None) -> str:
    assert heuristic is not None  # it is tried whatever the time
    return f"the heuristic's own choice: {heuristic.outcome}: {heuristic.reason}"


def timing_record(timing: Timing | None) -> dict[str, float] | None:
    """Return a timing for JSON."""
    return None if timing is None else {"mean": timing.mean, "median": timing.median, "spread": timing.spread}


def candidate_record(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate for JSON."""
    error = candidate.error if candidate.error is not None and candidate.error < float("inf") else None
    return {
        "choice": str(candidate.choice),
        "outcome": candidate.outcome,
        "reason": candidate.reason,
        "timing": timing_record(candidate.timing),
        "error": error,
    }


def winner_record(winner: Winner) -> dict[str, Any]:
    """Return a winner for JSON."""
    return {
        "problem": winner.problem,
        "choice": str(winner.choice),
        "complete": winner.complete,
        "before": timing_record(winner.before),
        "after": timing_record(winner.after),
    }


def main() -> None:
    """Do the job that stdin holds."""
    job = json.loads(sys.stdin.read())
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as channel:
        os.dup2(2, 1)

        def send(**event: Any) -> None:
            channel.write(json.dumps(event) + "\n")
            channel.flush()

        try:
            {"collect": collect, "search": search}[job["task"]](job, send)
        except REPORTED as error:
            send(event="refused", reason=str(error))
        else:
            send(event="done")


if __name__ == "__main__":
    main()
