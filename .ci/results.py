"""Print one line for each suite of a CI run, and one for all.

A test that one suite skipped must have passed in another suite of the run, so that every test has run somewhere; those
that need what no package brings (ELSEWHERE) are counted in a line of their own. The exit status is 1 if anything
failed, did not run, or was skipped everywhere.

usage: results.py FOLDER [NAME OF A FAILED STEP ...]
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

# reasons to skip, of tests that run where somebody has built what they need
ELSEWHERE = ("needs Caffe's OpenCL branch",)
MOST_NAMED = 20  # failed tests that the last lines name
LONGEST = 12  # files whose times are printed


@dataclass
class Suite:
    """The tests of one junit file by outcome; failed ones have a message, skipped tests and modules a reason.

    `seconds` are those of each file of tests, whatever became of them.
    """

    passed: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)


def read(path: Path) -> Suite:
    """Read a junit file."""
    suite = Suite()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
        suite.seconds[case.get("classname") or name] += float(case.get("time") or 0)
        skip = case.find("skipped")
        problem = next((part for kind in ("failure", "error") for part in case.findall(kind)), None)
        if problem is not None:
            suite.failed[name] = problem.get("message") or ""
        elif skip is not None:
            suite.skipped[name] = " ".join(filter(None, (skip.get("message"), skip.text)))
        else:
            suite.passed.add(name)
    return suite


def ran(name: str, passed: set[str]) -> bool:
    """Return whether a test passed; for a module that was skipped as a whole, whether any of its tests passed."""
    return name in passed or any(other.startswith(name + ".") for other in passed)


def print_times(path: Path) -> None:
    """Print how long each step took: the file has the second at which each one began, and the last one is this one."""
    steps = [line.split("\t") for line in path.read_text().splitlines()]
    for (begin, name), (end, _) in zip(steps, steps[1:]):
        minutes, seconds = divmod(int(end) - int(begin), 60)
        print(f"{minutes:3d}:{seconds:02d}  {name}")


def print_longest(suites: dict[str, Suite]) -> None:
    """Print the files of tests that took longest, and the suite of each."""
    files = Counter({(file, name): each for name, suite in suites.items() for file, each in suite.seconds.items()})
    for (file, name), seconds in files.most_common(LONGEST):
        print(f"{int(seconds) // 60:3d}:{int(seconds) % 60:02d}  {file} in {name}")


def main(folder: Path, failed_steps: list[str]) -> int:
    print_times(folder / "steps.tsv")
    rows = [line.split("\t") for line in (folder / "suites.tsv").read_text().splitlines()]
    suites = {name: read(folder / f"{name}.xml") for name, _, _ in rows if (folder / f"{name}.xml").exists()}
    print_longest(suites)
    everywhere = set().union(*(suite.passed for suite in suites.values()))
    passed, failed, never, wrong = 0, 0, {}, []
    for name, frameworks, runtime in rows:
        where = f"{frameworks}; OpenCL: {runtime}"
        if name not in suites:
            print(f"{name}: did not run; {where}")
            failed += 1
            continue
        suite = suites[name]
        print(
            f"{name}: {len(suite.passed)} passed, {len(suite.failed)} failed, "
            f"{len(suite.skipped)} left to other suites; {where}"
        )
        passed, failed = passed + len(suite.passed), failed + len(suite.failed)
        wrong += [f"{name}: {test}: {' '.join(message.split())[:200]}" for test, message in suite.failed.items()]
        never.update({test: reason for test, reason in suite.skipped.items() if not ran(test, everywhere)})
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
