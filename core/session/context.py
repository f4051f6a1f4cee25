"""Contexts: a device with its kernels and its plans, one for each problem."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Callable

from clgraft.core import abi, html
from clgraft.core.errors import BuildError, ProblemError
from clgraft.core.planning.choice import Choice
from clgraft.core.planning.choose import Advice, Chosen, choose, choose_with_sums, plan_choice
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.floor import Work
from clgraft.core.planning.launches import Launches
from clgraft.core.problem import Argument, Problem, parse
from clgraft.core.runtime import build_processes, devices
from clgraft.core.runtime.affinity import affinity_kept
from clgraft.core.runtime.context import DeviceContext
from clgraft.core.runtime.plan import Plan
from clgraft.core.session.fork import refuse_after_fork
from clgraft.core.session.planner import DevicePlanner

# recommends a choice for a problem on a context's device; None recommends none
Advisor = Callable[[Problem, "Context"], "Advice | None"]

MOST_PLANS = 1024  # that a context keeps for problems that may be asked for again


def _no_advice(problem: Problem, context: Context) -> Advice | None:
    return None


class Context(DeviceContext):
    """A device, its queue, its kernels and its plans.

    Made by `context`. Plans are cached by problem, the `MOST_PLANS` that were asked for last; a plan that is forgotten
    serves its owners. Runs of one context are serialised.

    Attributes
    ----------
    device : DeviceInfo
    cl_device, cl_context, queue : pyopencl objects
    advisor : callable
        Recommends a choice for a problem (see `clgraft.core.tuning`); shared by all contexts.
    compiler : callable
        Prepares a graph for a context (see `clgraft.core.graph.CompiledGraph`); shared by all contexts.
    graph_writer : callable
        Hands a graph, given as text, to the C runtime (see `clgraft.core.graph.hand_over_text`); shared likewise.
    """

    advisor: Advisor = staticmethod(_no_advice)
    compiler: Callable[..., Any]
    graph_writer: Callable[..., Any]

    def __init__(
        self,
        cl_context: Any,
        cl_device: Any,
        queue: Any,
        ffi: Any = abi.ffi,
        lib: Any = abi.lib,
        device: DeviceInfo | None = None,
    ) -> None:
        super().__init__(cl_context, cl_device, queue, ffi, lib, device)
        self._plans: OrderedDict[tuple[Problem, str | None], Plan] = OrderedDict()
        self._graphs: list[weakref.ref[Any]] = []  # the compiled ones, in order
        self.planner = self._planner()

    def __repr__(self) -> str:
        count = len(self._plans)
        return f"Context({self.device}, {count} plan{'' if count == 1 else 's'})"

    def _repr_html_(self) -> str:
        device = self.device
        notes = [
            f"{device.device_class}, {device.compute_units} compute units, {device.vector_width} floats wide, "
            f"{device.global_memory / 2**30:.1f} GiB of memory ({device.host_access}), driver {device.driver}"
        ]
        with self._lock:
            rows = [(problem, plan.algorithm, plan.tuned) for (problem, _), plan in self._plans.items()]
        return html.table(["problem", "implementation", "tuned"], rows, repr(self), notes)

    @classmethod
    def on(cls, selector: str | None, ffi: Any = abi.ffi, lib: Any = abi.lib) -> Context:
        """Return a new context on the device that a selector names (see `devices.select`)."""
        import pyopencl as cl

        refuse_after_fork()
        with affinity_kept():
            device = devices.select(selector)
            cl_context = cl.Context([device])
            return cls(cl_context, device, cl.CommandQueue(cl_context, device), ffi, lib)

    def _planner(self) -> DevicePlanner:
        """Return a planner that does not keep the context alive: a cycle would outlive its last user."""
        this = weakref.ref(self)

        def advise(problem: Problem) -> Advice | None:
            context = this()
            return None if context is None else context.advisor(problem, context)

        return DevicePlanner(weakref.proxy(self), advise)

    def choose(self, problem: Problem, algorithm: str | None = None) -> Chosen:
        """Return the implementation that serves a problem, with its launches.

        The advisor's choice comes first, then the implementations in their order. With `algorithm` only the
        implementation of that name is asked, for its own settings.
        """
        advice = self.advisor(problem, self) if algorithm is None else None
        return choose(problem, self.planner, advice, algorithm)

    def choose_with_sums(self, layer: Problem, norm: Problem) -> tuple[Chosen, Chosen, int]:
        """Return what serves a layer and the norm after it with sums in between (see `planning.choose`)."""
        advice = (self.advisor(layer, self), self.advisor(norm, self))
        return choose_with_sums(layer, norm, self.planner, self.planner.dry(), advice)

    def hand_over(self, problem: Problem, launches: Launches, name: str) -> Any:
        """Build programs and hand launches to the C runtime (see `DeviceContext.hand_over`).

        After a `BuildError` kernels are built while implementations are chosen, so that advice whose kernels the
        device's compiler refuses is not followed: planning again returns another choice, or raises the error once more.
        """
        try:
            return super().hand_over(problem, launches, name)
        except BuildError:
            self.planner.at_once = True
            raise

    def _chosen(self, problem: Problem, algorithm: str | None = None) -> tuple[Chosen, Any]:
        """Return what serves a problem, and the C runtime's handle of its plan."""
        at_once = self.planner.at_once
        try:
            chosen = self.choose(problem, algorithm)
            return chosen, self.hand_over(problem, chosen.launches, chosen.algorithm)
        except BuildError:
            if at_once:
                raise
        chosen = self.choose(problem, algorithm)
        return chosen, self.hand_over(problem, chosen.launches, chosen.algorithm)

    def planning_state(self) -> str | None:
        """Return what else than problems, device and settings decides how they are planned, as text.

        None: no plan must be kept, because that may change at any time, or because advice is not followed any more.
        """
        state = getattr(self.advisor, "state", None)
        return None if state is None or self.planner.at_once else state(self)

    def expect(self, problems: Sequence[Problem]) -> None:
        """Have child processes build the kernels of problems that are going to be planned, and do not wait for them.

        Nothing is done where that does not pay, or was done before, and nothing that fails is an error here. Only for
        CPUs: a graph for another device may keep its values in another order, which changes the problems.
        """

        def planned() -> Iterator[tuple[Sequence[Argument], Launches]]:
            for problem in problems:
                with contextlib.suppress(ProblemError, BuildError):
                    self.expect_possible(problem)
                    yield problem.arguments(), self.choose(problem).launches

        if problems and self.device.is_cpu:
            build_processes.begin(self.cl_device, "\n".join(sorted(map(str, problems))), planned())

    def serves(self, problem: Problem, algorithm: str) -> bool:
        """Return whether the implementation of a name serves a problem; nothing is built to find out."""
        try:
            choose(problem, self.planner.dry(), None, algorithm)
        except ProblemError:
            return False
        return True

    def foreseen(self, problem: Problem) -> str:
        """Return the name of the implementation that is going to serve a problem; nothing is built to find out."""
        return choose(problem, self.planner.dry(), self.advisor(problem, self)).algorithm

    def launches(self, problem: Problem, choice: Choice) -> Launches:
        """Return the launches of one choice (see `planning.choose.plan_choice`)."""
        return plan_choice(problem, self.planner, choice)

    def assemble(self, problem: Problem) -> Any:
        """Plan a problem and return the C runtime's handle of the plan, which the caller owns."""
        self.expect_possible(problem)
        began = self.plan_began()
        chosen, handle = self._chosen(problem)
        self.plan_ended(problem, chosen.label, began)
        return handle

    def assemble_graph(self, text: str, **options: str) -> Any:
        """Plan a graph and return the C runtime's handle of the plan, which the caller owns."""
        return self.graph_writer(self, text, **options)

    def plan_launches(self, problem: Problem, launches: Launches, name: str) -> Plan:
        """Return a plan of launches that the caller has; it is not cached."""
        self.expect_possible(problem)
        handle = self.hand_over(problem, launches, name)
        work = (Work.of(problem, launches),)
        return Plan(self, problem, name, (), handle, precision=launches.precision, work=work)

    def plan(self, problem: Problem, algorithm: str | None = None) -> Plan:
        """Return the plan for a problem, made on its first use.

        Parameters
        ----------
        problem : Problem
        algorithm : str, optional
            Insist on one implementation by its name; by default a tuned choice, else the first that does not decline.

        Raises
        ------
        ArgumentError
            If ``CLGRAFT_TUNE`` holds a word that is no policy.
        ProblemError
            If the device cannot serve the dtype, or the named implementation declines.
        BuildError
            If the device's compiler refuses a kernel.
        """
        found = self._plans.get((problem, algorithm))
        if found is not None:
            with contextlib.suppress(KeyError):  # another thread may have forgotten it just now
                self._plans.move_to_end((problem, algorithm))
            return found
        with self._lock:
            found = self._plans.get((problem, algorithm))
            if found is None:
                refuse_after_fork()
                self.expect_possible(problem)
                began = self.plan_began()
                chosen, handle = self._chosen(problem, algorithm)
                given = (chosen.algorithm, chosen.declined, handle, chosen.tuned, chosen.launches.precision)
                found = Plan(self, problem, *given, work=(Work.of(problem, chosen.launches),))
                self._plans[problem, algorithm] = found
                if len(self._plans) > MOST_PLANS:
                    self._plans.popitem(last=False)
                self.plan_ended(problem, chosen.label, began)
            return found

    def compile(
        self,
        graph: Any,
        passes: str | None = None,
        constants: Mapping[str, Any] | None = None,
        memory: int | None = None,
        precision: str | None = None,
        kept: bool = False,
        last: Mapping[str, Any] | None = None,
        on_device: Collection[str] = (),
    ) -> Any:
        """Return a graph prepared for this device, to be run as one call.

        Parameters
        ----------
        graph : clgraft.core.graph.Graph
        passes : str, optional
            Switches of passes, such as ``-fold``; by default what ``CLGRAFT_GRAPH`` holds.
        constants : mapping of str to array, optional
            Inputs that never change, such as the parameters of a net for inference. They are sent to the device once,
            what follows from them alone is computed once, and runs do not take them.
        memory : int, optional
            Most bytes for values inside of the graph. Where they need more, cheap ones are computed again in backward
            instead of being kept. By default the memory of the device.
        precision : str, optional
            ``float16`` or ``bfloat16``: products of float32 are computed in 16 bits, and what rounding would spoil in
            float32; inputs, states and outputs keep their types. By default what ``CLGRAFT_PRECISION`` says.
        kept : bool
            Whether the program cache keeps what planning finds out, for processes that compile the same graph later.
        last : mapping of str to Image, optional
            Inputs and outputs that lie in channels last (see `clgraft.core.graph.passes.settled`).
        on_device : collection of str
            Inputs, states and outputs that are in memory of the device in every run. Others may be in the host's.

        Raises
        ------
        ProblemError
            If the device cannot serve a dtype. When a run or a report plans the graph: if `memory` is too little.
        BuildError
            If the device's compiler refuses a kernel.
        """
        found = self.compiler(graph, self, passes, constants, memory, precision, kept, last, on_device)
        with self._lock:
            self._graphs = [*(known for known in self._graphs if known() is not None), weakref.ref(found)]
        return found

    def finish(self) -> None:
        """Wait for all work of the context, which may still be queued after runs without results in host memory."""
        self._check(self.lib.clg_context_finish(self.handle))

    def problems(self) -> tuple[Problem, ...]:
        """Return the problems whose tuned choices decide for the kept plans and the graphs that still exist."""
        with self._lock:
            found = dict.fromkeys(problem for problem, _ in self._plans)
        return tuple({**found, **dict.fromkeys(parse(text).tuned_through for text, _ in self.graph_problems())})

    def graph_problems(self) -> tuple[tuple[str, str], ...]:
        """Return each problem of the graphs that still exist, as often as they run it, with its implementation."""
        return tuple(pair for graph in self._living() for report in graph.reports() for pair in report.algorithms)

    def graph_runs(self) -> tuple[tuple[str, str, int], ...]:
        """Return each problem as `graph_problems` does, with the runs so far of the plan that it is in."""
        pairs = (pair for graph in self._living() for pair in zip(graph.reports(), graph.plans()))
        return tuple((*problem, plan.runs) for report, plan in pairs for problem in report.algorithms)

    def _living(self) -> list[Any]:
        with self._lock:
            return [graph for graph in (known() for known in self._graphs) if graph is not None]

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[Work]]:
        """Collect the work of all that runs in a block, in the list that it gives, once the block has ended.

        Plans that a context has for problems and graphs count, also where others run them, in C or another thread.
        Those of C programs and those that were forgotten do not.
        """
        before = {plan: plan.runs for plan in self._every_plan()}
        found: list[Work] = []
        yield found
        for plan in self._every_plan():
            found += (plan.runs - before.get(plan, 0)) * plan.work

    def _every_plan(self) -> list[Plan]:
        with self._lock:
            plans = list(self._plans.values())
        return plans + [plan for graph in self._living() for plan in graph.plans()]
