"""Makes Caffe importable for these tests, and quiet; Caffe reads both variables before anything else."""

from __future__ import annotations

import os

os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")  # caffe_pb2 is older than today's protobuf
os.environ.setdefault("GLOG_minloglevel", "2")
