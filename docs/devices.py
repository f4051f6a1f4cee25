"""Write docs/devices.md from the files in docs/devices/: `python docs/devices.py`.

Each file was written by `clgraft report` on the device that it is about. What stands between the marks
`<!-- devices -->` and `<!-- end -->` of the page is written anew: a table of all devices, and a section for each, by
the functions that write the Markdown of a single report. `tests/test_devices_page.py` compares the page with the files.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from clgraft.plugins.command_line.report import page
from clgraft.plugins.command_line.report.device_report import DeviceReport

DOCS = Path(__file__).resolve().parent
PAGE, FOLDER = DOCS / "devices.md", DOCS / "devices"
MARK = re.compile(r"(<!-- devices -->\n)(.*?)(<!-- end -->)", re.S)


def filled(text: str, folder: Path) -> str:
    """Return the page with the devices of a folder's files, in the order of their names."""
    reports = [DeviceReport.read(path) for path in sorted(folder.glob("*.json"))]
    lines = page.overview(reports)
    for report in reports:
        lines += ["", f"## {page.title_of(report)}", "", *page.lines(report, "###")]
    return MARK.sub(lambda match: match[1] + "\n".join([*lines, ""]) + match[3], text)


def main() -> int:
    """Write the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), FOLDER), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
