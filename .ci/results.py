"""Prints a line for every suite of a CI run, and one for all.

A skipped test is in order only if it ran and passed in another suite of the same run. Fails if anything failed, was
skipped everywhere, or did not run.

usage: results.py FOLDER [NAME OF A FAILED STEP ...]
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def outcomes(path: Path) -> dict[str, str]:
    """Give a junit file's tests, name to outcome."""
    found = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        children = {child.tag for child in case}
        outcome = "failed" if children & {"failure", "error"} else "skipped" if "skipped" in children else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found


def main(folder: Path, failed_steps: list[str]) -> int:
    total: Counter[str] = Counter()
    suites: dict[str, dict[str, str]] = {}
    for line in (folder / "suites.tsv").read_text().splitlines():
        name, frameworks, runtime = line.split("\t")
        path = folder / f"{name}.xml"
        suites[name] = outcomes(path) if path.exists() else {}
        count = Counter(suites[name].values())
        if not count:
            print(f"{name}: did not run")
            total["failed"] += 1
            continue
        total += count
        print(f"{name}: {count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped; {frameworks}; {runtime}")
    passed = {test for tests in suites.values() for test, outcome in tests.items() if outcome == "passed"}
    skipped = {test for tests in suites.values() for test, outcome in tests.items() if outcome == "skipped"}
    nowhere = sorted(skipped - passed)
    print(f"{len(skipped)} tests were skipped in some suite; {len(skipped) - len(nowhere)} of them passed in another")
    for test in nowhere:
        print(f"ran nowhere: {test}")
    for step in failed_steps:
        print(f"failed: {step}")
    print(f"{total['passed']} passed, {total['failed'] + len(nowhere)} failed")
    return 1 if total["failed"] or nowhere or failed_steps or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
