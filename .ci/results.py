"""Print one line for each suite of a CI run, and one for all.

A test that one suite skipped must have passed in another suite of the run, or its turn there must come with another
commit, so that every test runs somewhere; those that need what no package brings (ELSEWHERE) are counted in a line of
their own. A test whose process died, and that passed alone afterwards, is named. The exit status is 1 if anything
failed, did not run, or was skipped everywhere.

usage: results.py FOLDER [NAME OF A FAILED STEP ...]
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests import recorded

# reasons to skip, of tests that run where somebody has built what they need, or with another commit
ELSEWHERE = ("needs Caffe's OpenCL branch", "it is the turn of other nets")
MOST_NAMED = 20  # failed tests that the last lines name
LONGEST = 24  # files whose times are printed


def ran(name: str, passed: set[str]) -> bool:
    """Return whether a test passed; for a module that was skipped as a whole, whether any of its tests passed."""
    return name in passed or any(other.startswith(name + "::") for other in passed)


def print_times(path: Path) -> None:
    """Print how long each step took: the file has the second at which each one began, and the last one is this one."""
    steps = [line.split("\t") for line in path.read_text().splitlines()]
    for (begin, name), (end, _) in zip(steps, steps[1:]):
        minutes, seconds = divmod(int(end) - int(begin), 60)
        print(f"{minutes:3d}:{seconds:02d}  {name}")


def print_background(path: Path) -> None:
    """Print what commands took that ran beside others: the file has seconds, and those of processors as two numbers."""
    for name, seconds, user, system in (line.split("\t") for line in path.read_text().splitlines()):
        print(f"beside others: {name}: {float(seconds):.0f} s, {float(user) + float(system):.0f} s of processors")


def print_longest(suites: dict[str, recorded.State]) -> None:
    """Print the files of tests that took longest, and the suite of each."""
    files: Counter[tuple[str, str]] = Counter()
    for name, suite in suites.items():
        for test, seconds in suite.seconds.items():
            files[test.partition("::")[0], name] += seconds
    for (file, name), seconds in files.most_common(LONGEST):
        print(f"{int(seconds) // 60:3d}:{int(seconds) % 60:02d}  {file} in {name}")


def usage(path: Path) -> str:
    """Return what is known of a suite's time and memory."""
    if not path.exists() or not path.read_text():
        return ""  # its process was killed, or the disk is full
    words = "; {seconds} s, {processors} s of processors; largest process {largest} MiB, {left} MiB left"
    return words.format(**json.loads(path.read_text()))


def main(folder: Path, failed_steps: list[str]) -> int:
    print_times(folder / "steps.tsv")
    print_background(folder / "background.tsv")
    rows = [line.split("\t") for line in (folder / "suites.tsv").read_text().splitlines()]
    suites = {name: recorded.read(folder / f"{name}.tests") for name, _, _ in rows}
    print_longest(suites)
    everywhere = set().union(*(suite.passed for suite in suites.values()))
    in_turn = set().union(*(suite.in_turn for suite in suites.values()))
    passed, failed, never, wrong = 0, 0, {}, []
    for name, frameworks, runtime in rows:
        where = f"{frameworks}; OpenCL: {runtime}{usage(folder / f'{name}.usage')}"
        suite = suites[name]
        if not suite.done:
            print(f"{name}: did not run; {where}")
            failed += 1
            continue
        bad, crashed = suite.results()
        print(
            f"{name}: {len(suite.passed)} passed, {len(bad)} failed, {len(suite.skipped)} left to other suites; {where}"
        )
        for test in crashed:
            print(f"passed alone after its process died: {name}: {test}")
        passed, failed = passed + len(suite.passed), failed + len(bad)
        wrong += [f"{name}: {test}: {' '.join(message.split())[:200]}" for test, message in bad.items()]
        never.update({test: reason for test, reason in suite.skipped.items() if not ran(test, everywhere | in_turn)})
    for needed in ELSEWHERE:
        left = [test for test, reason in never.items() if needed in reason]
        if left:
            print(f"{len(left)} tests not part of this run: {never[left[0]]}")
        never = {test: reason for test, reason in never.items() if test not in left}
    for test, reason in sorted(never.items()):
        print(f"ran in no suite: {test}: {reason}")
    for line in (*wrong[:MOST_NAMED], *([f"and {len(wrong) - MOST_NAMED} more"] if len(wrong) > MOST_NAMED else [])):
        print(f"failed: {line}")
    for step in failed_steps:
        print(f"failed: {step}")
    failed += len(never)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or failed_steps or not passed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
