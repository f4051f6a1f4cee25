"""The forms of the product, in order of preference: another generation of GPUs is another file and a name here."""

from clgraft.core.operators.conv.gemm_gpu.mma import MMA
from clgraft.core.operators.conv.gemm_gpu.portable import PORTABLE
from clgraft.core.operators.conv.gemm_gpu.stream import STREAM
from clgraft.core.operators.conv.gemm_gpu.tile import Form
from clgraft.core.operators.conv.gemm_gpu.wgmma import WGMMA

FORMS: tuple[Form, ...] = (STREAM, WGMMA, MMA, PORTABLE)
