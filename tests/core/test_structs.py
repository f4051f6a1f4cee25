"""Structs that kernels take by value: declared and packed from one table."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest

from clgraft.core.operators.conv import arguments as conv_arguments
from clgraft.core.operators.copying import boxes, moves_gpu, whole_gpu
from clgraft.core.operators.pooling import arguments as pooling_arguments
from clgraft.core.planning import sizes
from clgraft.core.planning.structs import KINDS, Struct

MODULES = (conv_arguments, pooling_arguments, sizes, boxes, moves_gpu, whole_gpu)
ALL = {value.name: value for module in MODULES for value in vars(module).values() if isinstance(value, Struct)}


def test_a_struct_is_declared_and_packed_in_the_tables_order():
    struct = Struct("PhaseGrid", ("batch",), ("size",))
    assert struct.defines() == {"PHASE_GRID_FIELDS": "int batch, size_d, size_h, size_w;"}
    packed = struct.pack({"size": (2, 3, 4), "batch": 1})
    assert np.frombuffer(packed.value, np.int32).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("values", [{"batch": 1}, {"batch": 1, "size": (1, 2, 3), "taps": (1, 2, 3)}])
def test_other_fields_are_refused(values):
    with pytest.raises(ValueError, match=r"\[Grid\] got fields"):
        Struct("Grid", ("batch",), ("size",)).pack(values)


def test_an_axis_that_is_missing_is_refused():
    with pytest.raises(ValueError, match=r"\[Grid\] got size \(1, 2\)"):
        Struct("Grid", ("batch",), ("size",)).pack({"batch": 1, "size": (1, 2)})


@pytest.mark.parametrize("struct", ALL.values(), ids=ALL)
def test_kernels_read_what_was_packed(context, struct):
    """Every field arrives at its place, whatever the device's compiler thinks of structs."""
    (macro, fields), names = *struct.defines().items(), struct.fields
    stores = " ".join(f"out[{i}] = s.{name};" for i, name in enumerate(names))
    source = f"""#define {macro} {fields}
        typedef struct {{ {macro} }} {struct.name};
        kernel void show(global {struct.kind} *out, const {struct.name} s, const int after) {{
            {stores} out[{len(names)}] = after;
        }}"""
    numbers = iter(range(101, 101 + len(names)))
    values = {name: next(numbers) for name in struct.counts}
    values.update({name: tuple(next(numbers) for _ in "dhw") for name in struct.spatial})
    kernel = cl.Program(context.cl_context, source).build(["-cl-std=CL1.2"]).show
    out = np.zeros(len(names) + 1, KINDS[struct.kind])
    buffer = cl.Buffer(context.cl_context, cl.mem_flags.READ_WRITE, out.nbytes)
    queue = cl.CommandQueue(context.cl_context)
    kernel(queue, (1,), None, buffer, struct.pack(values).value, np.int32(7))
    cl.enqueue_copy(queue, out, buffer)
    assert out.tolist() == [*range(101, 101 + len(names)), 7]
