"""Models with named inputs, parameters and outputs, and the sessions that run them; no framework."""

from clgraft.core.model.errors import ModelError, UnsupportedOperators
from clgraft.core.model.groups import Group
from clgraft.core.model.lowered import Chosen, LoweredNet, Net
from clgraft.core.model.ports import Port, fits
from clgraft.core.model.precision import PRECISIONS, carried, expect_precision
from clgraft.core.model.sending import Sent
from clgraft.core.model.session import NetSession, Session, kept
from clgraft.core.model.source import Source, contents, view
from clgraft.core.model.store import Store
from clgraft.core.model.trainer import Trainer
from clgraft.core.model.training import LoweredTraining, TrainingNet

__all__ = [
    "PRECISIONS",
    "Chosen",
    "Group",
    "LoweredNet",
    "LoweredTraining",
    "ModelError",
    "Net",
    "NetSession",
    "Port",
    "Sent",
    "Session",
    "Source",
    "Store",
    "Trainer",
    "TrainingNet",
    "UnsupportedOperators",
    "carried",
    "contents",
    "expect_precision",
    "fits",
    "kept",
    "view",
]
