"""Reads symbols: the JSON that MXNet writes, of all its versions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clgraft.core.model import ModelError, Source, contents

Entry = tuple[int, int]  # a node and its output
VARIABLE = "null"
MOST_NODES = 100_000
MOST_OUTPUTS = 10_000  # of a node
LONGEST_NUMBER = 20  # digits
LONGEST_ATTRIBUTE = 2000  # characters of an attribute with a value of Python's
LONG = re.compile(r"\b(\d+)L\b")  # a whole number, as Python 2 wrote some
# attributes that may be longer
TEXTS = {"graph": 2**26, "constants": 2**26, "frozen": 2**20, "expression": 20_000, "gradient": 20_000}
READ = ("__shape__", "__dtype__")  # attributes of the scope that are read; others are left alone
DIGITS = re.compile(r"\d{400}")  # no attribute has such numbers, which take long to read


@dataclass(frozen=True)
class SymbolNode:
    """An operator or a variable.

    Attributes
    ----------
    name, operator : str
        The operator of a variable is `VARIABLE`.
    attributes : mapping of str to str
    inputs : tuple of Entry
    """

    name: str
    operator: str
    attributes: Mapping[str, str]
    inputs: tuple[Entry, ...]

    @property
    def is_variable(self) -> bool:
        """Whether it is a variable."""
        return self.operator == VARIABLE

    def __str__(self) -> str:
        return f"{self.operator} {self.name!r}"


@dataclass(frozen=True)
class SymbolGraph:
    """A symbol.

    Attributes
    ----------
    nodes : tuple of SymbolNode
        Each after those that it reads.
    heads : tuple of Entry
        The outputs.
    """

    nodes: tuple[SymbolNode, ...]
    heads: tuple[Entry, ...]


def read_symbol(source: Source) -> SymbolGraph:
    """Read a symbol.

    Parameters
    ----------
    source : path or bytes

    Raises
    ------
    ModelError
        If the file cannot be read or is no symbol.
    """
    name, data = contents("mxnet", source, "symbol")
    return _Reader(name).read(data)


class _Reader:
    """Reads one symbol; its name is for errors."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self, data: bytes) -> SymbolGraph:
        """Return the symbol."""
        try:
            graph = json.loads(data, parse_int=self._whole)
        except RecursionError:
            raise self._error("brackets in too many brackets", "a symbol's JSON") from None
        except ValueError as error:  # of the encoding, too
            raise self._error(f"no JSON ({str(error)[:200]})", "a symbol's JSON") from None
        nodes, heads = (graph.get(name) if isinstance(graph, dict) else None for name in ("nodes", "heads"))
        if not isinstance(nodes, list) or not isinstance(heads, list) or not heads:
            raise self._error("no nodes and heads", "a symbol's JSON, which has both")
        if len(nodes) > MOST_NODES:
            raise self._error(f"{len(nodes)} nodes", f"at most {MOST_NODES}")
        made: list[SymbolNode] = []
        variables: set[str] = set()
        for number, node in enumerate(nodes):
            one = self._node(number, node)
            if one.is_variable and one.name in variables:
                raise self._error(f"two variables {one.name!r}", "one of each name")
            if one.is_variable:
                variables.add(one.name)
            made.append(one)
        outputs = tuple(self._entry(entry, len(made), "its heads") for entry in heads)
        return SymbolGraph(tuple(made), outputs)

    def _error(self, got: str, expected: str) -> ModelError:
        return ModelError(f"[mxnet] got {self._name} with {got}, expected {expected}")

    @staticmethod
    def _whole(text: str) -> int:
        if len(text) > LONGEST_NUMBER:
            raise ValueError(f"a number of {len(text)} digits")
        return int(text)

    def _node(self, number: int, node: Any) -> SymbolNode:
        words = [node.get(key) for key in ("name", "op")] if isinstance(node, dict) else []
        if len(words) < 2 or not all(isinstance(word, str) for word in words):
            raise self._error(f"node {number} without name and op", "both")
        name, operator = map(str, words)
        entries = node.get("inputs", [])
        if not isinstance(entries, list):
            raise self._error(f"node {name!r} with inputs that are no list", "a list")
        inputs = tuple(self._entry(entry, number, f"the inputs of node {name!r}") for entry in entries)
        return SymbolNode(name, operator, self._attributes(name, node), inputs)

    def _entry(self, entry: Any, before: int, where: str) -> Entry:
        """Return a reference to an output of a node that comes before."""
        numbers = entry[:2] if isinstance(entry, list) and len(entry) in (2, 3) else []
        if len(numbers) != 2 or not all(isinstance(each, int) and not isinstance(each, bool) for each in numbers):
            raise self._error(f"{str(entry)[:60]} among {where}", "[node, output, version]")
        source, output = numbers
        if not 0 <= source < before or not 0 <= output < MOST_OUTPUTS:
            raise self._error(f"output {output} of node {source} among {where}", f"one of the {before} nodes before")
        return source, output

    def _attributes(self, name: str, node: Mapping[str, Any]) -> dict[str, str]:
        """Return a node's attributes as text: ``attrs``, ``attr`` until MXNet 1.0, or ``param`` until 0.9."""
        found: dict[str, str] = {}
        for key in ("attr", "param", "attrs"):
            given = node.get(key) or {}
            if not isinstance(given, dict):
                raise self._error(f"{key} of node {name!r} that are no object", "an object")
            for attribute, value in given.items():
                if key == "attr" and "param" in node and not attribute.startswith("__"):
                    continue  # not the operator's: of the scope, as lr_mult was written then
                text = value if isinstance(value, str) else json.dumps(value)
                found[attribute] = LONG.sub(r"\1", text) if text.startswith("(") else text
        for attribute, value in found.items():
            if attribute.startswith("__") and attribute not in READ:
                continue
            most = TEXTS.get(attribute, LONGEST_ATTRIBUTE)
            if len(value) > most:
                raise self._error(
                    f"attribute {attribute} of node {name!r} of {len(value)} characters", f"at most {most}"
                )
            if DIGITS.search(value):
                raise self._error(f"a number of more than 400 digits in node {name!r}", "shorter ones")
        return found
