"""The memory, context and queue of the branch serve plans as they are."""

from __future__ import annotations

import re

from tests.caffe_layers.opencl import nets

COPIED = r"bytes_to_device (\d+) bytes_to_host (\d+)"


def test_plans_run_in_the_branch_s_own_buffers(branch):
    printed = branch.run("buffers")
    assert re.search(r"difference (\S+)", printed)[1] == "0"
    assert re.search(COPIED, printed).groups() == ("0", "0")
    assert int(re.search(r"launches (\d+)", printed)[1]) > 0


def test_layers_copy_nothing(branch):
    printed = branch.net(nets.chain(), "gpu", ours="all").printed
    counted = re.search(COPIED, printed)
    assert counted and counted.groups() == ("0", "0"), printed[-2000:]
    assert int(re.search(r"launches (\d+)", printed)[1]) >= 20
