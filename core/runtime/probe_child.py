"""A child process of probes.py, which a compiler may end: it exits with 0 if a probe succeeds.

It reads which probe of which device, and the kernel's source and options, as JSON. The argument is not used.
"""

from __future__ import annotations

import json
import sys

from clgraft.core.runtime import devices, probes, toolchains
from clgraft.core.runtime.build_child import device_of


def main() -> None:
    """Run the probe."""
    task = json.load(sys.stdin)
    toolchains.prepare()
    device = device_of(*task["device"])
    listed = toolchains.of(device).probes(devices.describe(device))
    probe = next(each for each in listed if each.what == task["what"])
    sys.exit(0 if probes.succeeds(device, task["source"], tuple(task["options"]), probe) else 1)


if __name__ == "__main__":
    main()
