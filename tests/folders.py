"""Where the tests stand, and what processes that tests start need to import them."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def python_path(*before: Path) -> str:
    """Return a PYTHONPATH with some folders, the root of this tree and what this process was given."""
    return os.pathsep.join(filter(None, [*map(str, before), str(ROOT), os.environ.get("PYTHONPATH", "")]))
