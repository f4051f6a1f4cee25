"""What planners may rely on about a device."""

from __future__ import annotations

from dataclasses import dataclass, field

from clgraft.core.problem import SMALL

LARGE = 2**24  # bytes; systems may report smaller caches than there are
# bytes of the last level's cache that a core fills at most: where two cores report 260 MiB, which others use as well,
# copies in a row were faster past the caches from 44 MiB on
MOST_OF_CORE = 2**24


@dataclass(frozen=True)
class DeviceInfo:
    """What a device can do, and what it costs; `core/runtime/toolchains/` fills it.

    Planners choose by capabilities, never by what says which device and driver it is: platform, driver, version,
    toolchain, compute_capability. These are for users, and for rows of measured choices.

    Attributes
    ----------
    toolchain : str
        A word for the driver, by which users may select it.
    vector_width : int
        Lanes of float32 in the widest register that the compiler uses (CPU), or the preferred vector (GPU).
    local_memory, global_memory : int
        Bytes.
    host_access : str
        ``raw_pointer``: kernels follow host pointers; ``use_host_ptr``: host memory can be wrapped without a copy;
        ``staged``: the device has memory of its own.
    device_class : str
        ``cpu``, ``gpu`` or a word for the maker of a GPU: names rows of tile sizes.
    cache_bytes : int
        Size of the largest cache that the driver reports, or of a CPU the operating system; 0 if they report none.
    compute_capability : int
        Of devices that have one, times 10: 90 for 9.0; 0 for all others.
    launch_seconds, launch_seconds_of_a_unit : float
        What a launch takes apart from its work, and what each compute unit adds: see `launch_cost`.
    stays_awake : bool
        Whether a thread that waits for a short launch keeps its core awake: the driver's own wait sleeps at once, and
        takes no part in the work.
    vectorizes_items : bool
        Whether the compiler makes vectors of work-items, which it has to be kept from where kernels have their own.
    matrix_units : tuple of str
        Instructions for matrices that the device has: ``mma`` and ``wgmma``, for 16 bits alone those of
        `core/operators/conv/gemm_gpu/halves_tiles.py`, and of CPUs those of `core/planning/pairs.py`. Kernels compute
        the others' results through local memory, or in float32.
    splits_float32 : bool
        Whether three products by ``mma`` of operands that are split in two are faster than one of float32.
    has_shuffles : bool
        Whether the work-items of a warp exchange values by instructions.
    runs_groups_at_once : bool
        Whether work-groups of a launch that fit the compute units together run at once, so that they may meet.
    overlaps_queues : bool
        Whether launches of two queues run at the same time and events between them cost no more than a launch.
    registers : int
        Of a compute unit, of 32 bits; 0 if it is not known.
    largest_local_memory : int
        Bytes of a work-group that kernels for ``wgmma`` may ask for, which may be more than `local_memory`; 0: none.
    has_wgmma : bool
        Whether a probe has found that kernels for ``wgmma`` work.
    halves : tuple of str
        The same for kernels whose operands are of 16 bits: matrix units with types, such as ``mma-float16``.
    has_bulk_copies : bool
        Whether a probe has found that a copy engine brings boxes of matrices to local memory.
    has_pair_products : bool
        Whether a probe has found that products of pairs of bfloat16 work: `kernels/common/operands.cl`.
    has_amx : bool
        Whether a probe has found that the processor's products of tiles of bfloat16 work: `kernels/common/amx.cl`.
    has_slow_pairs : bool
        Whether products of floats take less time than those. The processor's rounding to bfloat16 is used all the same.
    """

    name: str
    platform: str
    driver: str
    version: str
    selector: str
    is_cpu: bool
    is_gpu: bool
    compute_units: int
    vector_width: int
    local_memory: int
    global_memory: int
    max_work_group_size: int
    has_fp64: bool
    has_fp16: bool
    host_access: str
    device_class: str
    cache_bytes: int = 0
    compute_capability: int = 0
    toolchain: str = ""
    launch_seconds: float = 0.0
    launch_seconds_of_a_unit: float = 0.0
    stays_awake: bool = False
    vectorizes_items: bool = False
    matrix_units: tuple[str, ...] = ()
    splits_float32: bool = False
    has_shuffles: bool = False
    runs_groups_at_once: bool = False
    overlaps_queues: bool = False
    registers: int = 0
    largest_local_memory: int = 0
    has_wgmma: bool = False
    halves: tuple[str, ...] = ()
    has_bulk_copies: bool = False
    has_pair_products: bool = field(default=False, hash=False)  # no hash needs what may not be known yet
    has_slow_pairs: bool = False
    has_amx: bool = field(default=False, hash=False)

    @property
    def kept_in_caches(self) -> int:
        """Bytes of a result of which who reads it next still finds something in a cache."""
        return max(LARGE, min(self.cache_bytes // 2, MOST_OF_CORE * self.compute_units))

    @property
    def channels_last(self) -> tuple[str, ...]:
        """Types that matrix units multiply as they lie in channels last: graphs keep values in that layout."""
        return tuple(dtype for dtype in SMALL if any(name.endswith(f"-{dtype}") for name in self.halves))

    @property
    def launch_cost(self) -> float:
        """Seconds that a launch takes apart from its work."""
        return self.launch_seconds + self.launch_seconds_of_a_unit * self.compute_units

    def __str__(self) -> str:
        return f"{self.selector} {self.platform} / {self.name}"
