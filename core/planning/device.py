"""What planners may rely on about a device."""

from __future__ import annotations

from dataclasses import dataclass

HOPPER = 90  # compute capability of the devices with wgmma, times 10
LARGE = 2**24  # bytes; runtimes may report smaller caches than there are
POCL = "portable computing language"  # as its platform calls itself


@dataclass(frozen=True)
class DeviceInfo:
    """What a device can do.

    Attributes
    ----------
    vector_width : int
        Lanes of float32 in the widest register that the compiler uses (CPU), or the preferred vector (GPU).
    local_memory, global_memory : int
        Bytes.
    host_access : str
        ``raw_pointer``: kernels follow host pointers; ``use_host_ptr``: host memory can be wrapped without a copy;
        ``staged``: the device has memory of its own.
    device_class : str
        ``cpu``, ``nvidia``, ``amd``, ``intel-gpu``, ``mali`` or ``gpu``: names rows of tile sizes.
    cache_bytes : int
        Size of the largest cache that the driver reports; 0 if it reports none.
    compute_capability : int
        Of NVIDIA's devices, times 10: 90 for 9.0; 0 for all others.
    has_wgmma : bool
        Whether kernels for Hopper's matrix units work (`core/runtime/hopper.py`).
    has_wgmma_from_tiles : bool
        Whether these read both operands from local memory, as float16. It is found out where TF32 was asked for before
        the device's context was made.
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
    has_wgmma: bool = False
    has_wgmma_from_tiles: bool = False

    @property
    def kept_in_caches(self) -> int:
        """Bytes of a result of which who reads it next still finds something in a cache."""
        return max(LARGE, self.cache_bytes // 2)

    @property
    def is_pocl(self) -> bool:
        """Whether PoCL serves the device."""
        return POCL in self.platform.lower()

    def __str__(self) -> str:
        return f"{self.selector} {self.platform} / {self.name}"
