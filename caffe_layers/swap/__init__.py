"""Puts OpenCL layers into existing nets and takes them out again."""

from __future__ import annotations

from clgraft.caffe_layers.swap.files import is_solver, naming, net_of, restore_file, swap_file
from clgraft.caffe_layers.swap.net import swap_back, swap_net
from clgraft.caffe_layers.swap.regions import Region
from clgraft.caffe_layers.swap.report import Report, Row
from clgraft.caffe_layers.swap.rules import RULES, SwapError

__all__ = [
    "RULES",
    "Region",
    "Report",
    "Row",
    "SwapError",
    "is_solver",
    "naming",
    "net_of",
    "restore_file",
    "swap_back",
    "swap_file",
    "swap_net",
]
