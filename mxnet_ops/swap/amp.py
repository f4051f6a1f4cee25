"""Reads what MXNet's automatic mixed precision (``mx.contrib.amp``) has made of a symbol: regions mix types themselves.

MXNet leaves amp's casts out of a symbol's JSON unless it is asked for them, so a swapped symbol has none.
"""

from __future__ import annotations

import json
from typing import Any

from clgraft.core import settings


def type_of_casts(symbol: Any) -> str | None:
    """Return the type of 16 bits to which amp casts values of a symbol; None if it does not."""
    text = symbol.tojson(remove_amp_cast=False)
    if '"amp_cast"' not in text:
        return None
    casts = (node for node in json.loads(text)["nodes"] if node["op"] == "amp_cast")
    found = (node.get("attrs", {}).get("dtype", "") for node in casts)
    return next((dtype for dtype in found if dtype in settings.MIXED), None)
