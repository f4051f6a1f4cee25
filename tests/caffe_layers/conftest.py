"""Makes Caffe quiet for these tests; it reads the variable before anything else."""

from __future__ import annotations

import os

os.environ.setdefault("GLOG_minloglevel", "2")
