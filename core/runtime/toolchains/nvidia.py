"""NVIDIA's driver: what its devices have, and how programs for Hopper's matrix units are built.

NVIDIA's compiler for OpenCL C targets sm_90, and the instructions of these units need sm_90a. So a kernel has them as
comments of a form of its own inside inline assembly. The compiler keeps them in the program's binary, which is PTX, a
text; here they become instructions, the target gets its `a`, and the driver builds the program once more from this
text. NVIDIA documents none of this, so a probe finds out first whether it works on a device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Callable, ClassVar

import numpy as np

from clgraft.core.errors import BuildError
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.halves import name_of
from clgraft.core.planning.structs import StructConstant
from clgraft.core.planning.tensor_map import BOX_COLUMNS, TensorMap
from clgraft.core.problem import SMALL
from clgraft.core.runtime.toolchains.base import Children, Probe, Toolchain
from clgraft.core.runtime.toolchains.halves import halves_probe

MARK = "//sm_90a: "  # in front of an instruction in kernels
TARGET = b".target sm_90"
MOST_REGISTERS = "-cl-nv-maxrregcount="  # an option
WORK_GROUP_SIZE = re.compile(rb"^\.reqntid [^\n]*\n", re.M)  # a directive of PTX

# compute capabilities, times 10
SHUFFLES = 70  # from which on warps shuffle and fence as kernels ask
MMA = 80  # from which on there are matrix units for TF32
MMA_FLOAT32 = (80,)  # where three products of TF32 are faster than one of float32 on the other units
HOPPER = 90  # the only one with wgmma
REGISTERS = 2**16  # of a compute unit, of 32 bits
HOPPER_LOCAL_MEMORY = 227 * 1024  # bytes of a work-group, although the driver reports 48 KiB

ROWS, COLUMNS, ITEMS = 64, 64, 128  # of the product that is checked, and its work-items
DEPTH = 32
# of the box that is checked
BOXED, BOXED_ROW, BOXED_COLUMN = TensorMap(columns=72, rows=40, pitch=80, box_rows=32), 24, 64

# of maps of matrices (micro/bulk.cl), in bytes and words. The driver's encoder, which needs a context of CUDA, writes
# the same; NVIDIA documents no bit of it, so a probe finds out whether it is what the device takes.
MAP_BYTES, MAP_BASE, MAP_UNIT, MAP_ADDRESSES = 128, 2**32, 16, 2**52
MAP_KIND = 0x46330  # tiles of float16, four axes, zeros beyond the ends, swizzle of 128 bytes, L2 reads 128 bytes
MAP_END = 0x400
DEFINES = {"VL": 4, "SCALAR_ITEMS": 0}


def units_of(capability: int) -> dict[str, Any]:
    """Return what planners may rely on for a compute capability, times 10; 0 if it is not known."""
    units = {"mma": capability >= MMA, "wgmma": capability == HOPPER}
    return {
        "compute_capability": capability,
        "matrix_units": tuple(name for name, there in units.items() if there),
        "splits_float32": capability in MMA_FLOAT32,
        "has_shuffles": capability >= SHUFFLES,
        "runs_groups_at_once": capability > 0,
        "overlaps_queues": capability > 0,
        "registers": REGISTERS,
        "largest_local_memory": HOPPER_LOCAL_MEMORY if capability == HOPPER else 0,
    }


def wgmma_probe(device: DeviceInfo) -> Probe:
    """Return what finds out whether kernels for Hopper's matrix units work.

    The product of small whole numbers is exact in TF32, so all of it has to be right.
    """
    numbers = np.random.default_rng(0).integers(-9, 10, (2, ROWS * DEPTH)).astype(np.float32)
    return Probe(
        field="has_wgmma",
        what="wgmma",
        file="conv/gemm_gpu/check_wgmma.cl",
        kernel="check_wgmma",
        defines={**DEFINES, "EMULATED": int("wgmma" not in device.matrix_units)},
        items=ITEMS,
        inputs=tuple(numbers),
        expected=numbers[0].reshape(ROWS, DEPTH) @ numbers[1].reshape(DEPTH, COLUMNS),
    )


def bulk_probe(device: DeviceInfo, constant: StructConstant) -> Probe:
    """Return what finds out whether boxes of matrices arrive in local memory, one that is partly beyond its ends."""
    numbers = np.random.default_rng(0).integers(1, 2**10, (BOXED.rows, BOXED.pitch)).astype(np.uint16)
    expected = np.zeros((BOXED.box_rows, BOX_COLUMNS), np.uint16)
    there = numbers[BOXED_ROW:, BOXED_COLUMN : BOXED.columns]
    expected[: there.shape[0], : there.shape[1]] = there
    return Probe(
        field="has_bulk_copies",
        what="copies of boxes",
        file="conv/gemm_gpu/check_bulk.cl",
        kernel="check_bulk",
        defines={
            **{"EMULATED": int("wgmma" not in device.matrix_units), "MICRO": "WGMMA_UNITS", "TILE_M": 64},
            **{"TILE_N": 64, "THREADS": ITEMS, "ROWS": BOXED.box_rows, "X": BOXED_COLUMN, "Y": BOXED_ROW},
        },
        items=ITEMS,
        inputs=(numbers,),
        expected=expected,
        dtype="float16",
        constants=(constant,),
    )


class NVIDIA(Toolchain):
    """NVIDIA's driver.

    It compiles for one thread of a process at a time: 16 threads are 1.3 times as fast as one. A child first opens the
    device, which takes time and the device's memory. The costs of children follow from
    `python benchmarks/first_minute.py net resnet50_v1` with and without them.
    """

    WORDS: ClassVar[tuple[str, ...]] = ("nvidia",)
    HAS_PREFETCH: ClassVar[bool] = True
    CHILDREN: ClassVar[Children | None] = Children(
        launches=False, seconds_of_a_child=2.5, seconds_of_a_kernel=0.35, memory=2 * 2**30
    )

    def capabilities(self) -> dict[str, Any]:
        """Return what planners may rely on."""
        return {**super().capabilities(), **units_of(self._compute_capability())}

    def _compute_capability(self) -> int:
        device = self.cl_device
        if "cl_nv_device_attribute_query" not in device.extensions.split():
            return 0
        return 10 * int(device.compute_capability_major_nv) + int(device.compute_capability_minor_nv)

    def probes(self, device: DeviceInfo) -> Iterator[Probe]:
        """Return what is to be found out: whether kernels for the device's matrix units work."""
        if "wgmma" in device.matrix_units:
            yield wgmma_probe(device)
        for units in device.matrix_units:
            yield halves_probe(device, units, adds=tuple(name_of(units, dtype) for dtype in SMALL))
        if "wgmma" in device.matrix_units:
            yield bulk_probe(device, self.tensor_map(BOXED))

    def tensor_map(self, matrix: TensorMap) -> StructConstant:
        """Return a map of a matrix as Hopper's copy engine takes it, bit for bit as the driver encodes it.

        Two axes more have strides of 16 bytes and of 4 GiB, so that the matrix's address is a pair of coordinates and
        the map is the same for every array.
        """
        strides = (2 * matrix.pitch // MAP_UNIT, 1, MAP_BASE // MAP_UNIT)
        words = (
            *(0, MAP_BASE >> 32, MAP_KIND, *(stride & 0xFFFFFFFF for stride in strides), 0),
            *(strides[0] >> 32, matrix.columns - 1, matrix.rows - 1),
            *(MAP_BASE // MAP_UNIT - 1, MAP_ADDRESSES // MAP_BASE - 1, 0),
            *((BOX_COLUMNS - 1) << 24, matrix.box_rows - 1, 0, 2 * BOX_COLUMNS * matrix.box_rows, 0, MAP_END),
        )
        return StructConstant(np.array(words, "<u4").tobytes().ljust(MAP_BYTES, b"\0"))

    def kernel_text(self, file: str, name: str, macros: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Return the source of a kernel, told which PTX this compiler takes, and its options."""
        return super().kernel_text(file, name, {**macros, "PTX": self._compute_capability() or 1})

    def build(self, cl_context: Any, source: str, options: tuple[str, ...], built: Callable[..., Any]) -> Any:
        """Return a built program, with its marked instructions if it has any.

        Raises
        ------
        BuildError
            If the driver's binaries are of another form.
        """
        import pyopencl as cl

        program = super().build(cl_context, source, options, built)
        if MARK not in source:
            return program
        ptx = program.get_info(cl.program_info.BINARIES)[0]
        if MARK.encode() not in ptx:
            return program
        return built(cl.Program(cl_context, program.devices, [patched(ptx, options)]), options)


def patched(ptx: bytes, options: tuple[str, ...] = ()) -> bytes:
    """Return a program's PTX with the marked instructions, for the target that has them.

    Drivers ignore the option that limits registers in kernels whose work-groups have a required size, so it becomes a
    directive here.

    Raises
    ------
    BuildError
        If the text is not PTX for sm_90.
    """
    before, target, after = ptx.partition(TARGET)
    if not target or after[:1].isalnum():
        raise BuildError(f"[kernel] got a binary that starts with {ptx[:60]!r}, expected PTX for sm_90")
    for option in options:
        if option.startswith(MOST_REGISTERS):
            directive = f".maxnreg {int(option[len(MOST_REGISTERS) :])}\n".encode()
            after = WORK_GROUP_SIZE.sub(rb"\g<0>" + directive, after)
    return before + target + b"a" + after.replace(MARK.encode(), b"")
