"""The commands `clgraft run` and `clgraft export` in the registry."""

from __future__ import annotations

from typing import Any

from clgraft.plugins.models import export, run
from clgraft.plugins.plugin import Plugin


class ModelsPlugin(Plugin):
    """What commands do with models of every kind alike."""

    name = "models"
    examples = (
        "clgraft run model.onnx --input x=image.npy --profile",
        "clgraft run model-symbol.json --shape data=1,3,224,224",
        "clgraft run deploy.prototxt --weights net.caffemodel --image cat.ppm --labels labels.txt",
        "clgraft export model-symbol.json --shape data=1,3,224,224 -o model.onnx",
        "clgraft export deploy.prototxt --weights net.caffemodel -o net.onnx",
    )

    def add_commands(self, commands: Any) -> None:
        """Add the commands to the subparsers of the command line."""
        run.add_command(commands)
        export.add_command(commands)


PLUGIN = ModelsPlugin()
