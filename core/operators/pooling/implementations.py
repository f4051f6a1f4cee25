"""Registers the implementations, in order of preference."""

from clgraft.core.operators.channels_last import transposes
from clgraft.core.operators.pooling import (
    channels_cpu,
    channels_last,
    channels_whole,
    elements,
    mask,
    pixels_gpu,
    planes,
    side_by_side,
    sliding,
    whole,
    windows_gpu,
)
from clgraft.core.operators.pooling.problem import PoolProblem
from clgraft.core.planning.implementation import register, register_channels_last

register(PoolProblem, (whole, side_by_side, sliding, planes, windows_gpu, elements))
register(PoolProblem, (mask,), direction="mask")
for _direction in ("forward_argmax", "backward_argmax"):
    register(PoolProblem, (whole, side_by_side, planes, windows_gpu, elements), direction=_direction)
register_channels_last(PoolProblem, (channels_whole, channels_cpu, pixels_gpu, channels_last, transposes))
