"""What `make test` runs: every test that no rule of this file leaves to `make test-all`.

A rule names files below tests/, test functions, and the parameters that stay; all three are shell patterns. The first
rule that fits a test decides. Rules are for tests that cost seconds (most of it the compiler's, with an empty program
cache), and every operator keeps some of its named problems. Single tests can be marked in their file instead, with
`@pytest.mark.exhaustive`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests import recorded

HERE = Path(__file__).resolve().parent
MARK = "exhaustive"
COLLECTED = pytest.StashKey[dict[str, bool]]()  # every test that a run has found, and whether `make test` runs it
IN_TURN = pytest.StashKey[list[str]]()  # tests that other turns run
TARGET = "at most 6 minutes on two cores"
COVERS = (
    "every operator on named problems, the C interface, MXNet's and Caffe's operators and swaps, the command line",
    "make test-all adds all problems, random ones, whole nets, large sizes, fuzzing, sanitizers and planted faults",
)


@dataclass(frozen=True)
class Rule:
    """Tests of which only those with some parameters are run every day.

    Attributes
    ----------
    files, functions : str
        Patterns of a path below tests/ and of a function's name.
    keep : tuple of str
        Patterns of parameters, as they stand between the brackets of a test's name.
    every : int
        Of the tests of a function that fit `keep`, take the first and then every so many-th; 0 takes none.
    """

    files: str
    functions: str = "*"
    keep: tuple[str, ...] = ("*",)
    every: int = 1

    def fits(self, file: str, function: str) -> bool:
        """Return whether the rule is about a test function."""
        return fnmatchcase(file, self.files) and fnmatchcase(function, self.functions)


def rule(files: str, functions: str = "*", *keep: str, every: int | None = None) -> Rule:
    """Return a rule; without parameters and a number it takes no test."""
    if every is None:
        every = 1 if keep else 0
    return Rule(files, functions, keep or ("*",), every)


OTHER_MACHINES = ("*a GPU*", "*narrow vectors*")  # parameters of plans for machines other than this one
DEPTHWISE = ("*planes-17*", "*stride-2-wide*")

RULES = (
    # fuzzers, sanitizers, simulators, planted faults, other processors, packages
    rule("abi/test_fuzz.py"),
    rule("mxnet_ops/test_calls_fuzz.py"),
    rule("caffe_layers/test_*fuzz*.py"),
    rule("core/test_oclgrind.py"),
    rule("core/test_avx2.py"),
    rule("test_mutations.py", "test_a_planted_fault_is_noticed*"),
    rule("test_mutations.py", "test_sound_kernels_*"),
    rule("test_notebooks.py"),
    rule("test_package.py"),
    rule("test_record.py"),
    # the command line: what the first transcript begins with, and commands that need seconds for one test in parts
    rule("newcomer/*.py", "test_a_command_prints_*", "first-?"),
    rule("plugins/test_check.py", "test_every_operator_passes"),
    rule("plugins/test_check.py", "test_a_wrong_kernel_*"),
    rule("plugins/test_check.py", "test_commands_take_a_solver"),
    rule("plugins/test_check.py", "test_nets_in_caffe_pass", "lenet-test"),
    rule("plugins/test_check.py", "test_*_in_caffe_pass", "lenet-*"),
    rule("plugins/test_bench.py", "test_both_sides_*", "mxnet", "numpy"),
    rule("plugins/test_bench.py", "test_peaks_of_this_device_*"),
    rule("plugins/test_bench.py", "test_each_number_of_cores_*"),
    rule("plugins/test_bench.py", "test_floors_are_kept"),
    rule("plugins/test_floors_of_nets.py"),
    rule("plugins/test_peer_threads.py", "test_the_faster_number_*"),
    rule("plugins/test_peer_threads.py", "test_an_installed_peer_*"),
    rule("plugins/test_peer_threads.py", "test_a_program_is_restarted_*"),
    rule("plugins/test_registry.py", "test_a_distributions_plugin_*"),
    rule("plugins/test_signals.py", "test_a_reader_that_has_gone_*", "devices", "tune *"),
    rule("plugins/test_signals.py", "test_an_interrupt_during_imports_of_a_child_*", "check"),
    rule("plugins/test_swap_symbol.py", "test_check_says_which_shape_*"),
    rule("plugins/test_swap_symbol.py", "test_what_is_no_symbol_*"),
    rule("plugins/test_tune.py", "test_an_interrupted_*"),
    rule("plugins/test_tune.py", "test_candidates_that_take_*"),
    rule("plugins/test_tune.py", "test_a_heuristic_that_crashes_*"),
    rule("plugins/test_tune.py", "test_a_symbols_problems*"),
    rule("plugins/test_tune.py", "test_a_prototxts_problems"),
    rule("plugins/test_tune.py", "test_results_that_cannot_*"),
    rule("plugins/test_tune.py", "test_*_inside_of_regions"),
    rule("plugins/test_tune_at_first_use.py"),
    rule("plugins/test_tune_import.py", "test_rows_are_tried_*"),
    rule("plugins/test_verbose.py", "test_a_line_for_every_*", "plan,run-*"),
    rule("plugins/test_verbose.py", "test_tune_takes_*"),
    rule("plugins/test_verbose.py", "test_p*_of_*regions*"),
    rule("plugins/models/test_solver.py", "test_sixteen_bits_*"),
    rule("plugins/models/test_mxnet_nets.py", "test_nets_that_want_too_much_*"),
    rule("plugins/models/test_trainer.py", "test_a_scale_of_losses_*"),
    rule("abi/test_sessions.py", "test_the_example_labels_*", "gcc"),
    # sizes past caches and memories, every run of every implementation
    rule("core/test_large.py"),
    rule("core/test_first_use.py"),
    rule("core/test_pointwise_past_caches.py"),
    rule(
        "core/test_conv_past_caches.py",
        "test_the_same_bits_*",
        *("aligned-in place-epilogue", "aligned-gather-plain", "*aligned-winograd-plain", "aligned-depthwise*2-plain"),
    ),
    rule("core/*.py", "*past_the_caches*"),
    rule("core/test_tuning_candidates.py", "test_settings_*", "*"),
    rule("core/test_tuning_candidates.py"),
    # random problems: the first of each
    rule("core/*.py", "test_random_*", "0", "0-*", "*-0"),
    rule("core/*.py", "test_any_problem_runs_on_any_machine"),
    rule("caffe_layers/test_random_*.py"),
    rule("core/*.py", "*other_machines"),
    rule("core/test_pooling.py", "test_wide_indices"),
    rule("core/test_pooling_mask.py"),
    # every operator on named problems: the first one that each implementation serves, and a few others
    rule("core/test_every_run.py", "test_each_implementation_serves_a_set", "*"),
    rule("core/test_every_run.py", "test_types_of_16_bits*", every=120),
    rule("core/test_every_run.py", "test_kernels_for_gpus", every=80),
    rule("core/test_every_run.py", every=80),
    rule("core/test_copying.py", "test_a_gpu_moves_*"),
    rule("core/test_depthwise_gpu.py", "test_blocks_at_*", every=12),
    rule("core/test_graph_layouts.py", "test_devices_with_matrix_units_*"),
    rule("core/test_interpolation.py", "test_readers_cover_*"),
    rule("core/test_pairs.py", "test_matches_float64", "conv forward bf16 n1 ic14*"),
    rule("core/test_program_cache.py", "test_processes_that_share_*"),
    rule("core/test_conv_direct.py", "test_*", "plain-3x3-bias-*", "1x1-*"),
    rule("core/test_conv_cpu.py", "test_phases_of_a_stride"),
    rule("core/test_conv_gpu_gemm.py", "test_lines_that_every_run_leaves_out"),
    rule("core/test_conv_gpu_gemm.py", "test_every_tile"),
    rule("core/test_conv_gpu_gemm.py", "test_all_phases*"),
    rule("core/test_conv_gpu_matrix_units.py", "test_matches_float64", every=8),
    rule("core/test_conv_gpu_matrix_units.py", "test_tf32_*", every=3),
    rule("core/test_conv_gpu_fft.py", "test_matches_float64", "32-11x11-*", "*larger-than-a-tile*"),
    rule("core/test_conv_gpu_fft.py", "test_settings_of_a_search"),
    rule("core/test_conv_gpu_fft.py", "test_products_on*", every=6),
    rule("core/test_conv_gpu_winograd.py", "test_matches_float64", "*plain-3x3-bias*", "*groups-2*"),
    rule("core/test_conv_gpu_winograd.py", "test_five_taps_match_float64", "bias-*", "groups-2-*"),
    rule("core/test_conv_gpu_winograd.py", "test_every_tile*", every=9),
    rule("core/test_conv_gpu_winograd.py", "test_random_problems", every=20),
    rule("core/test_conv_winograd.py", "test_matches_float64", "*plain-3x3-bias*"),
    rule("core/test_conv_winograd.py", "test_every_number_*", "4-64-forward", "4-48-backward_filter"),
    rule("core/test_conv_winograd.py", "test_five_taps_match_float64", "bias-*"),
    rule(
        "core/test_conv_winograd.py",
        "test_rows_and_columns_match_float64",
        *("4-1x7-many-channels-*", "2-1x7-many-channels-backward_filter"),
    ),
    rule("core/test_conv_winograd.py", "test_rows_and_columns_err_*"),
    rule("core/test_conv_winograd.py", "test_dilated_match_float64", "4-by-2-forward", "2-two-dilations-forward"),
    rule("core/test_conv_winograd.py", "test_dilated_err_*"),
    rule("core/test_conv_winograd.py", "test_strided_match_float64", "4-odd-bias-*", "2-even-many-channels-*"),
    rule("core/test_conv_winograd.py", "test_strided_err_*", "4-128-*-0", "2-3-*-100"),
    rule("core/test_conv_winograd.py", "test_who_*"),
    rule("core/test_conv_winograd.py", "test_filter_in_parts"),
    rule("core/test_depthwise.py", "test_stands_first", *DEPTHWISE),
    rule("core/test_depthwise.py", "test_*_nothing_beside_*"),
    rule("core/test_grouped_planes.py", "test_touches_*"),
    rule(
        "core/test_grouped_planes.py",
        "test_stands_first",
        *("groups-of-4-forward", "one-to-many-forward", "stride-2-forward", "1d-backward_data"),
    ),
    rule("core/test_pooling.py", "test_not_a_number_*", "*f32"),
    rule("core/test_batchnorm.py", "test_activations_*", "prime-*relu*"),
    rule("core/test_batchnorm.py", "test_large_means_*", "n16 c5 s49-*this one"),
    rule("core/test_softmax.py", "test_cross_entropy_*", "few-classes-this one"),
    rule("core/nn/test_activations.py", "test_*gradients*", "*relu*", "*tanh*"),
    rule("core/nn/test_*.py", "*", every=3),
    rule("core/test_problem_facts.py", "test_gradients_are_differences"),
    rule("core/test_*.py", "*", every=12),
    # MXNet: each operator, one Gluon net, one symbol
    rule("mxnet_ops/test_*audit.py"),
    rule("mxnet_ops/test_random_symbols.py", "test_what_*", "*0-11*"),
    rule("mxnet_ops/test_vision_nets.py", "test_*", "ssd-single", "unet-regions", "Detector-hybrid-*"),
    rule("mxnet_ops/test_nets.py", "test_every_gradient_*"),
    rule("mxnet_ops/test_nets.py", "test_every_other_net_*"),
    rule("mxnet_ops/test_nets.py", "test_swap_of_a_net_*", "resnet18_v1", "alexnet"),
    rule("mxnet_ops/test_nets_*.py"),
    rule("mxnet_ops/test_swap_block.py", "test_net_of_the_zoo"),
    rule("mxnet_ops/test_first_run.py", "test_a_fork_while_operators_run_*"),
    rule("mxnet_ops/test_calls.py", "test_attributes_that_never_repeat_*"),
    rule("mxnet_ops/test_symbol_sessions.py", "test_a_net_of_each_family", "resnet18_v1"),
    rule("mxnet_ops/test_symbol_sessions.py", "test_every_other_net_*"),
    rule("mxnet_ops/test_symbol_sessions.py", "test_in_double_precision_*"),
    rule("mxnet_ops/test_convolution.py", "*_is_mxnets*", every=24),
    rule("mxnet_ops/test_*.py", "*", every=12),
    # Caffe: each layer, one net
    rule("caffe_layers/test_run.py", "test_solvers_that_stay_*"),
    rule("caffe_layers/test_*audit*.py"),
    rule("caffe_layers/test_session_cases.py", "test_a_net", "squeezenet"),
    rule("caffe_layers/test_session_cases.py", every=10),
    rule("caffe_layers/test_net_styles.py", "test_swapped_nets_*", "lenet"),
    rule("caffe_layers/test_net_styles.py", "test_caffe_takes_*"),
    rule("caffe_layers/test_training_nets.py"),
    rule("caffe_layers/test_generated_nets.py", "*compute_the_same", "0-10*"),
    rule("caffe_layers/test_*.py", "*", every=12),
    rule("plugins/models/test_export.py", "test_a_net_in_a_style_of_the_field", "mobilenet_v1", "ssd"),
)


# tests whose parameters are seeds of random problems, symbols or nets: any share of them is of the same kind
RANDOM = (
    rule("core/*.py", "test_random_*"),
    rule("caffe_layers/test_generated_nets.py", "*compute_the_same"),
    rule("mxnet_ops/test_random_symbols.py", "test_what_*"),
)

# tests whose parameters are many problems, nets, attributes or faults of a kind, which together take half of the time
MANY = (
    rule("test_mutations.py", "test_a_planted_fault_is_noticed"),
    rule("core/test_every_run.py", "test_plans_for_other_machines"),
    rule("core/test_every_run.py", "test_types_of_16_bits*"),
    rule("core/test_conv_gpu_*.py", "test_every_tile*"),
    rule("core/test_conv_gpu_fft.py", "test_products_on*"),
    rule("core/test_conv_winograd.py"),
    rule("core/test_conv_past_caches.py"),
    rule("core/test_grouped_planes.py", "test_stands_first"),
    rule("core/test_tuning_candidates.py"),
    rule("mxnet_ops/test_nets.py"),
    rule("mxnet_ops/test_symbol_sessions.py", "test_every_other_net_*"),
    rule("plugins/onnx/test_conformance.py"),
    rule("plugins/onnx/test_mxnet_exports.py"),
    rule("plugins/onnx/test_nets.py"),
    rule("plugins/torch/test_nets.py"),
    rule("*/test_attributes_audit*.py"),
    rule("caffe_layers/test_session_cases.py"),
)

# tests that are unlike each other: shares of them are taken of all together, not of each function
WHOLE = (
    rule("newcomer/*.py"),
    rule("plugins/*"),
    rule("test_*.py"),
    rule("core/test_avx2.py"),
    rule("core/test_large.py"),
    rule("core/test_oclgrind.py"),
    rule("mxnet_ops/test_calls_fuzz.py"),
)


# tests that take so long that they begin first: at the end another process would wait for them
LONG = (
    rule("abi/test_fuzz.py"),
    rule("caffe_layers/test_cpp_layers.py", "test_sanitizers_*"),
    rule("caffe_layers/test_fuzz_prototxt.py"),
    rule("core/test_avx2.py"),
    rule("mxnet_ops/test_nets_distributed.py"),
    rule("plugins/onnx/test_conformance.py", "test_every_node_*"),
    rule("plugins/onnx/test_nets.py", "test_nets_of_torchvision"),
    rule("plugins/test_check.py", "test_every_operator_*"),
    rule("plugins/*/test_verbose.py", "test_problems_*"),
    rule("plugins/torch/test_bench_nets.py", "test_the_machinery_*"),
    rule("test_notebooks.py"),
)

# tests that neither a device nor a version of Python or of a framework changes: of what the commands print, of files of
# this tree, of the reader of prototxts
ONCE = (
    rule("newcomer/*.py"),
    rule("snippets/*.py"),
    rule("test_architecture.py"),
    rule("test_c_sources.py"),
    rule("test_*_page.py"),
    rule("test_docs.py"),
    rule("test_everyday.py"),
    rule("test_golden.py"),
    rule("test_record.py"),
    rule("test_report.py"),
    rule("plugins/test_report.py"),
    rule("test_notebooks.py"),
    rule("core/test_kernel_warnings.py"),
    rule("caffe_layers/test_parameter_docs.py"),
    rule("caffe_layers/test_prototxt.py"),
    rule("caffe_layers/test_run.py", "test_a_*"),
    rule("caffe_layers/test_run.py", "test_solvers_*"),
    rule("caffe_layers/test_run.py", "test_the_copy_*"),
    rule("caffe_layers/test_run.py", "test_types_*"),
    rule("caffe_layers/test_structure.py"),
    rule("caffe_layers/test_swap.py"),
    rule("caffe_layers/test_swap_storage.py"),
    rule("caffe_layers/test_*fuzz*.py"),
)


@cache
def _file(path: Path) -> str:
    """Return a file's path below tests/, empty elsewhere."""
    file = path.resolve()
    return file.relative_to(HERE).as_posix() if HERE in file.parents else ""


def _named(item: Any) -> tuple[str, str]:
    """Return a test's file below tests/, empty elsewhere, and its function."""
    return _file(item.path), getattr(item, "originalname", None) or item.name


def _by_rule(items: Iterable[Any], rules: Iterable[Rule]) -> Iterator[tuple[Any, Rule | None]]:
    """Yield each test with the first rule that fits it."""
    found: dict[tuple[str, str], Rule | None] = {}
    for item in items:
        named = _named(item)
        if named not in found:
            found[named] = next((rule for rule in rules if rule.fits(*named)), None)
        yield item, found[named]


def long_first(items: Iterable[Any]) -> list[Any]:
    """Return tests in their order, but for those of `LONG`, which come first."""
    return [item for item, _ in sorted(_by_rule(items, LONG), key=lambda pair: pair[1] is None)]


def run_before(items: Iterable[Any], folder: Path) -> list[Any]:
    """Return the tests of `ONCE` that have passed in a suite of the same run.

    Parameters
    ----------
    items : iterable of pytest.Item
    folder : pathlib.Path
        What the suites have recorded.
    """
    passed = set[str]().union(*(recorded.read(path).passed for path in folder.glob("*.tests")))
    return [item for item, found in _by_rule(items, ONCE) if found and item.nodeid in passed]


@dataclass(frozen=True)
class Shares:
    """How much of the tests runs: every N-th, with each turn others, so that as many turns as N run all of them.

    Attributes
    ----------
    random, many, rest : int
        N of the tests of `RANDOM`, of `MANY`, and of those that are neither there nor in `WHOLE`; of each function at
        least one. All three are about what `make test` leaves out.
    whole : int
        N of the tests of `WHOLE` that `make test` leaves out.
    daily : int
        N of the tests of `make test`.
    turn : int
        Which of the N.
    """

    random: int = 1
    many: int = 1
    rest: int = 1
    whole: int = 1
    daily: int = 1
    turn: int = 0

    def of_functions(self, rule: Rule | None) -> int:
        """Return N for the tests that fit a rule first; 0 if it is not that of each function."""
        if rule is None:
            return self.rest
        return self.random if rule in RANDOM else self.many if rule in MANY else 0

    def due(self, name: str, every: int) -> bool:
        """Return whether it is a test's turn, whatever other tests there are."""
        return (crc32(name.encode()) + self.turn) % every == 0


def beyond_shares(items: Iterable[Any], shares: Shares) -> list[Any]:
    """Return the tests that are left to other turns, in no order.

    Parameters
    ----------
    items : iterable of pytest.Item
        In the order of their collection.
    shares : Shares
    """
    functions: dict[tuple[str, str], list[Any]] = defaultdict(list)
    every: dict[tuple[str, str], int] = {}
    left = []
    for item, found in _by_rule(items, (*RANDOM, *MANY, *WHOLE)):
        count = shares.of_functions(found)
        if item.get_closest_marker(MARK) and count:
            functions[_named(item)].append(item)
            every[_named(item)] = count
        elif not shares.due(item.nodeid, shares.whole if item.get_closest_marker(MARK) else shares.daily):
            left.append(item)
    for name, found in functions.items():
        n = min(every[name], len(found))
        left += [item for i, item in enumerate(found) if i % n != shares.turn % n]
    return left


def exhaustive(items: Iterable[Any]) -> list[Any]:
    """Return the tests that the rules leave to `make test-all`.

    Parameters
    ----------
    items : iterable of pytest.Item
        In the order of their collection.
    """
    left, seen = [], Counter()
    for item, fitting in _by_rule(items, RULES):
        name, function = _named(item)
        if not name:
            continue
        parameters = item.callspec.id if hasattr(item, "callspec") else ""
        found = fitting or Rule("*")
        fits = any(fnmatchcase(parameters, pattern) for pattern in found.keep)
        if not fits or any(fnmatchcase(parameters, pattern) for pattern in OTHER_MACHINES):
            left.append(item)
            continue
        if not found.every or seen[name, function] % found.every:
            left.append(item)
        seen[name, function] += 1
    return left
