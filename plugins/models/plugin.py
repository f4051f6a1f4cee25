"""The command `clgraft run` in the registry."""

from __future__ import annotations

from typing import Any

from clgraft.plugins.models import run
from clgraft.plugins.plugin import Plugin


class ModelsPlugin(Plugin):
    """What commands do with models of every kind alike."""

    name = "models"
    examples = (
        "clgraft run model.onnx --input x=image.npy --profile",
        "clgraft run model-symbol.json --shape data=1,3,224,224",
    )

    def add_commands(self, commands: Any) -> None:
        """Add `clgraft run` to the subparsers of the command line."""
        run.add_command(commands)


PLUGIN = ModelsPlugin()
