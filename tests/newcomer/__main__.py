"""Show or write what the transcripts' commands print today: `python -m tests.newcomer [--write] [FILE ...]`.

Run it in each environment: commands that need a package that is not there keep their text.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tempfile
from pathlib import Path

from tests.newcomer import transcripts


def main() -> int:
    """Return 1 if a transcript differs and is not written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the transcripts")
    parser.add_argument("files", nargs="*", help="names of transcripts without .txt (default: all)")
    options = parser.parse_args()
    differs = False
    with tempfile.TemporaryDirectory() as parent:
        place = transcripts.folder(Path(parent))
        for path in transcripts.files():
            if options.files and path.stem not in options.files:
                continue
            old, new = path.read_text(encoding="utf-8"), transcripts.written(path, place)
            lines = difflib.unified_diff(old.splitlines(), new.splitlines(), path.name, path.name, lineterm="")
            print(*lines, sep="\n")
            differs |= old != new
            if options.write:
                path.write_text(new, encoding="utf-8")
    return int(differs and not options.write)


if __name__ == "__main__":
    sys.exit(main())
