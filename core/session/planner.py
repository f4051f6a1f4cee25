"""What implementations plan with on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clgraft.core.planning.choose import Advice, choose, choose_fused, choose_fused_sums
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.epilogue import Epilogue
from clgraft.core.planning.launches import Launches, Sums, WantedSums
from clgraft.core.planning.structs import StructConstant
from clgraft.core.planning.tensor_map import TensorMap
from clgraft.core.problem import Problem
from clgraft.core.runtime.context import DeviceContext


class DevicePlanner:
    """A `Planner` on a device context.

    Parameters
    ----------
    runtime : DeviceContext
    advise : callable
        Returns the advice for a problem that is a part of another one, or None.

    Attributes
    ----------
    at_once : bool
        Build every kernel when it is asked for, so that advice whose kernels do not build is not followed.
    """

    def __init__(self, runtime: DeviceContext, advise: Callable[[Problem], Advice | None]) -> None:
        self._runtime, self._advise = runtime, advise
        self.at_once = False

    @property
    def device(self) -> DeviceInfo:
        """The device's description."""
        return self._runtime.device

    def kernel(
        self,
        file: str,
        name: str,
        defines: Mapping[str, Any] | None = None,
        dtype: str = "float32",
        options: tuple[str, ...] = (),
    ) -> Any:
        """Return a new kernel of a file in the kernels folder (see `DeviceContext.kernel`)."""
        kernel = self._runtime.kernel(file, name, defines, dtype, options)
        if self.at_once:
            self._runtime.programs.build([kernel])
        return kernel

    def tensor_map(self, matrix: TensorMap) -> StructConstant:
        """Return a map of a matrix as the device's copy engine takes it."""
        return self._runtime.toolchain.tensor_map(matrix)

    def launches(self, problem: Problem) -> Launches:
        """Return the launches for another problem, which becomes a part of the planned one."""
        return choose(problem, self, self._advise(problem)).launches

    def fused(self, problem: Problem, epilogue: Epilogue) -> Launches:
        """Return the launches for another problem with an epilogue; decline if what serves it has none."""
        return choose_fused(problem, self, self.dry(), epilogue, self._advise(problem)).launches

    def fused_sums(self, problem: Problem, epilogue: Epilogue, wanted: WantedSums) -> Sums:
        """Return the launches for another problem with an epilogue, which leave sums; decline if what serves cannot."""
        return choose_fused_sums(problem, self, self.dry(), epilogue, wanted, self._advise(problem))

    def dry(self) -> DryPlanner:
        """Return a planner for the same device that builds nothing."""
        return DryPlanner(self._runtime, self._advise)


class DryPlanner(DevicePlanner):
    """A planner without kernels: it finds out which implementation serves a problem, and builds nothing."""

    def kernel(
        self,
        file: str,
        name: str,
        defines: Mapping[str, Any] | None = None,
        dtype: str = "float32",
        options: tuple[str, ...] = (),
    ) -> Any:
        """Return None instead of a kernel."""
        return None
