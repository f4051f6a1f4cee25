"""Reads what MXNet's automatic mixed precision (``mx.contrib.amp``) has made of a symbol: regions mix types themselves.

MXNet leaves amp's casts out of a symbol's JSON unless it is asked for them, so a swapped symbol has none.
"""

from __future__ import annotations

import json
from typing import Any

import mxnet as mx

from clgraft.core import settings
from clgraft.core.planning.precision import FLOAT32

SMALL = ("2", "12")  # float16 and bfloat16 as symbols say them


def type_of_casts(symbol: Any) -> str | None:
    """Return the type of 16 bits to which amp casts values of a symbol; None if it does not."""
    text = symbol.tojson(remove_amp_cast=False)
    if '"amp_cast"' not in text:
        return None
    casts = (node for node in json.loads(text)["nodes"] if node["op"] == "amp_cast")
    found = (node.get("attrs", {}).get("dtype", "") for node in casts)
    return next((dtype for dtype in found if dtype in settings.MIXED), None)


def without_casts(symbol: Any) -> Any:
    """Return a symbol without amp's casts, which computes in float32.

    With ``cast_optional_params`` amp has declared parameters as 16 bits and left out their casts. They stay what they
    are, and are cast to float32.
    """
    plain = mx.sym.load_json(symbol.tojson())
    attributes = plain.attr_dict()
    small = [name for name in plain.list_arguments() if attributes.get(name, {}).get("__dtype__") in SMALL]
    if not small:
        return plain
    values = mx.sym.load_json(symbol.tojson()).get_internals()
    return plain(**{name: mx.sym.Cast(values[name], dtype=FLOAT32, name=f"{name}_{FLOAT32}") for name in small})
