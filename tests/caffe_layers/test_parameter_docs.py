"""The table of parameters is whole: a row for every field of every message that a layer of ours reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clgraft.caffe_layers import LAYERS
from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.swap.rules import RULES, VIEWS

TEXT = (Path(__file__).parents[2] / "docs" / "caffe-layers.md").read_text(encoding="utf-8")
ALL = {**RULES, **VIEWS}
MESSAGES = sorted({name for rule in ALL.values() for name in (rule.parameters, rule.more) if name})


def section_of(message: str) -> str:
    """Return the part under the heading that names a message; where none does, the one part that names it."""
    parts = re.split(r"\n(?=##)", TEXT[TEXT.index("## Each parameter") : TEXT.index("## What stays in Caffe")])
    under = [part for part in parts if f"`{message}`" in part.partition("\n")[0]]
    (found,) = under or [part for part in parts if f"`{message}`" in part]
    return found


@pytest.mark.parametrize("message", MESSAGES)
def test_every_parameter_has_a_row(message):
    section = section_of(message)
    fields = schema.descriptor("LayerParameter").fields_by_name[message].message_type.fields
    missing = [field.name for field in fields if f"`{field.name}`" not in section]
    assert not missing


def test_every_layer_and_type_is_named():
    assert [name for name in LAYERS if f"`{name}`" not in TEXT] == []
    swap = (Path(__file__).parents[2] / "docs" / "caffe.md").read_text(encoding="utf-8")
    table = swap[swap.index("| Caffe's type |") : swap.index("All others stay")]
    assert [kind for kind in ALL if not re.search(rf"\b{kind}\b", table)] == []
