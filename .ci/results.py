"""Prints a line for every suite of a CI run, and one for all; fails if anything failed, was skipped, or did not run.

usage: results.py FOLDER [NAME OF A FAILED STEP ...]
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def counts(path: Path) -> dict[str, int]:
    """Add up a junit file's suites."""
    total = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        for name in total:
            total[name] += int(suite.get(name, 0))
    return total


def main(folder: Path, failed_steps: list[str]) -> int:
    passed = failed = skipped = 0
    for line in (folder / "suites.tsv").read_text().splitlines():
        name, frameworks, runtime = line.split("\t")
        path = folder / f"{name}.xml"
        if not path.exists():
            print(f"{name}: did not run")
            failed += 1
            continue
        count = counts(path)
        bad = count["failures"] + count["errors"]
        good = count["tests"] - bad - count["skipped"]
        print(f"{name}: {good} passed, {bad} failed, {count['skipped']} skipped; {frameworks}; OpenCL: {runtime}")
        passed, failed, skipped = passed + good, failed + bad, skipped + count["skipped"]
    for step in failed_steps:
        print(f"failed: {step}")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or skipped or failed_steps or not passed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
