"""The snippets of README and of the guides, and what each needs."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(
    r"(?:^ *<!-- not executed: (?P<reason>[^>]+) -->\n)?^(?P<indent> *)```(?P<language>\w+)\n(?P<code>.*?)^ *```$",
    re.M | re.S,
)
# what tells that a snippet of Python needs a framework
NEEDS = {
    "mxnet": re.compile(r"\bmx\.|\bgluon\b|mxnet_ops|\bswap_(?:block|symbol)\("),
    "caffe": re.compile(r"^import caffe$", re.M),
    "torch": re.compile(r"\btorch\b"),
    "onnx": re.compile(r"plugins\.onnx|session\.export\("),
}


@dataclass(frozen=True)
class Snippet:
    """A block of code of a page.

    Attributes
    ----------
    page, line : str, int
    language, code : str
    reason : str
        Why it is not executed: what the invisible comment above it says; empty if it is.
    """

    page: str
    line: int
    language: str
    code: str
    reason: str

    @property
    def framework(self) -> str:
        """The framework that a snippet of Python needs; empty if none."""
        return next((name for name, words in NEEDS.items() if words.search(self.code)), "")


def snippets() -> list[Snippet]:
    """Return all snippets of all pages, in their order."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start("language")) + 1
            code = textwrap.dedent(match["code"])
            name = page.relative_to(ROOT).as_posix()
            found.append(Snippet(name, line, match["language"], code, match["reason"] or ""))
    return found
