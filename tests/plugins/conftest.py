"""Shortens what the commands measure of the machine itself, whose figures these tests do not compare."""

from __future__ import annotations

import pytest

from clgraft.plugins.command_line.bench import peaks


@pytest.fixture(autouse=True)
def short_peaks(monkeypatch):
    """Measure the device's peaks in a hundredth of the time; a test has them measured as for users by `undo`."""
    monkeypatch.setattr(peaks, "SECONDS", 0.0)
    monkeypatch.setattr(peaks, "ROUNDS", 2)
    monkeypatch.setattr(peaks, "COPY_BYTES", 1 << 24)
