"""Commands of plugins that are started for their results: where one is called, no other command is imported."""

from __future__ import annotations

COMMANDS = {"run": "clgraft.plugins.models.run"}
