"""Which operators of a model a user chose, by types and names: one rule for every framework."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from clgraft.core.errors import SelectionError, hint, nearest

_FIRST = 5  # names that a message lists where none is near
_WORDS = {"types": "types", "names": "names", "select": "names or types"}


class Selection:
    """A choice of a model's operators.

    Parameters
    ----------
    types : iterable of str, optional
        Types, in the framework's words and in any case. All by default.
    names : iterable of str, optional
        Names, or shell patterns of names. All by default.
    exclude : iterable of str, optional
        Names, patterns of names, or types that are left out.
    select : iterable of str, optional
        Names, types, or patterns of either. All by default.
    noun : str
        What the framework calls an operator.
    """

    def __init__(
        self,
        types: Iterable[str] | None = None,
        names: Iterable[str] | None = None,
        exclude: Iterable[str] | None = None,
        select: Iterable[str] | None = None,
        noun: str = "operator",
    ) -> None:
        self.types, self.names, self.select = _listed(types), _listed(names), _listed(select)
        self.exclude = _listed(exclude) or []
        self.noun = noun

    def refusal(self, name: str, kind: str) -> str:
        """Return why an operator of a name and a type is left alone; empty if it is chosen."""
        for pattern in self.exclude:
            if _fits("exclude", pattern, name, kind):
                return f"excluded by {pattern}"
        for word, patterns, reason in (
            ("names", self.names, "name not chosen"),
            ("types", self.types, "type not chosen"),
            ("select", self.select, "not selected"),
        ):
            if patterns is not None and not any(_fits(word, pattern, name, kind) for pattern in patterns):
                return reason
        return ""

    def notes(self, seen: Sequence[tuple[str, str]], swapped: int = 0) -> list[str]:
        """Return a line for each pattern that matches nothing in a model, while others of its kind do.

        Parameters
        ----------
        seen : sequence of pairs of str
            The name and the type of each operator of the model.
        swapped : int
            How many of the model's operators are clgraft's already, which an error says as well.

        Raises
        ------
        SelectionError
            If types, names or `select` match nothing at all, or nothing together; names the nearest that there are.
        """
        names = list(dict.fromkeys(name for name, _ in seen))
        kinds = list(dict.fromkeys(kind for _, kind in seen))
        given = {"types": self.types, "names": self.names, "select": self.select}
        known = {"types": kinds, "names": names, "select": [*names, *kinds], "exclude": [*names, *kinds]}
        found = []
        for word, patterns in {**given, "exclude": self.exclude}.items():
            missed = [p for p in patterns or () if not any(_fits(word, p, *one) for one in seen)]
            if missed and len(missed) == len(patterns or ()) and word != "exclude":
                raise SelectionError(self._nothing(word, missed, known[word], swapped))
            found += [f"no {self.noun} matches {p}{hint(_plain(p), known[word])}" for p in missed]
        chosen = [f"{word} {', '.join(patterns)}" for word, patterns in given.items() if patterns]
        whole = Selection(self.types, self.names, None, self.select)
        if chosen and all(whole.refusal(*one) for one in seen):  # what is excluded is so by intent
            raise SelectionError(
                f"[swap] got {' and '.join(chosen)}, expected some {self.noun} that fits all of it{self._own(swapped)}"
            )
        return found

    def _nothing(self, word: str, missed: Sequence[str], known: Sequence[str], swapped: int) -> str:
        near = list(dict.fromkeys(name for pattern in missed for name in nearest(_plain(pattern), known)))
        if not near and len(known) > _FIRST:
            near = [*known[:_FIRST], "..."]
        such = f", such as {', '.join(near or known)}" if known else ", of which there are none"
        return (
            f"[swap] got {word} {', '.join(missed)}, expected {_WORDS[word]} of the model's {self.noun}s{such}"
            f"{self._own(swapped)}"
        )

    def _own(self, swapped: int) -> str:
        return f" ({already(swapped, self.noun)})" if swapped else ""


def already(count: int, noun: str = "operator") -> str:
    """Return what to say of a model that was swapped before."""
    return f"already swapped: {count} {noun}{' is' if count == 1 else 's are'} clgraft's"


def _listed(values: Iterable[str] | None) -> list[str] | None:
    return None if values is None else [values] if isinstance(values, str) else list(values)


def _fits(word: str, pattern: str, name: str, kind: str) -> bool:
    """Return whether a pattern of an argument matches an operator."""
    # the name as it stands first: names may hold the characters of patterns
    named = name == pattern or fnmatchcase(name, pattern)
    if word == "names":
        return named
    if word == "select":
        return named or fnmatchcase(kind, pattern)
    return kind.lower() == pattern.lower() or (named and word == "exclude")


def _plain(pattern: str) -> str:
    """Return a pattern without the characters that make it one."""
    return re.sub(r"[*?\[\]]", "", pattern)
