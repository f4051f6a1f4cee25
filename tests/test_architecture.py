"""Who imports whom, read from the imports themselves, and what the sources hold."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("core", "mxnet_ops", "caffe_layers", "plugins")
ADAPTERS = ("mxnet_ops", "caffe_layers", "plugins")
LEVELS = 2  # of modules below core that adapters name
FRAMEWORKS = {"mxnet", "caffe", "torch", "onnx", "tensorflow"}
MAY_IMPORT_FRAMEWORK = {
    "core": set(),
    "mxnet_ops": {"mxnet"},
    "caffe_layers": {"caffe"},
    "plugins": {"mxnet", "caffe", "torch", "onnx"},  # torch is a peer of the benchmarks
}
# words with which the docstring of a function does not start: that says what it does
NO_VERBS = {"A", "All", "An", "How", "It", "One", "The", "This", "What", "Whether", "Without"}
# modules of the core that every package may import
LEAVES = ("core.errors", "core.html", "core.log", "core.settings")
# what runs outside of the package: the program that builds libclgraft.so, and what that library runs in its Python
OUTSIDE = ("core.abi.build", "core.abi.embed", "core.abi.embedded")
# modules of the runtime that toolchains may import: the others import toolchains
BELOW_TOOLCHAINS = {f"core.runtime.{name}" for name in ("building", "cache_limit", "folders", "sources")}
# drivers, platforms and generations of devices that only toolchains may name
DRIVERS = r"pocl|portable computing|intel|nvidia|mesa|rusticl|clover|llvmpipe"
GENERATIONS = r"hopper|ptx"  # kernels may say whose instructions they are written in
TOOLCHAINS = "core/runtime/toolchains"
# what a device's description holds for users, and planners do not look at
NAMES_OF_DEVICES = {"platform", "driver", "version", "toolchain", "compute_capability"}
# adapters' files with expressions that users write, and examples of them
USERS_EXPRESSIONS = {"mxnet_ops/operators/pointwise.py", "caffe_layers/layers/pointwise.py"}
# what an operator is translated by, and names of functions that compute there what it means
TRANSLATIONS = (
    *("mxnet_ops/operators", "mxnet_ops/optimizers", "mxnet_ops/regions", "mxnet_ops/swap", "mxnet_ops/symbols"),
    *("mxnet_ops/training", "caffe_layers/layers", "caffe_layers/nets", "plugins/onnx", "plugins/torch"),
)
# files there that compute something, and what: no operator
COMPUTED = {
    "mxnet_ops/optimizers/numbers.py": "what number MXNet reads from a text, digit by digit",
    "mxnet_ops/symbols/params.py": "how many elements the bytes of a file may hold",
    "caffe_layers/nets/fillers.py": "initial values on the host, by Caffe's distributions",
    "caffe_layers/nets/weights.py": "places of arrays in memory",
    "plugins/onnx/costs.py": "estimates of what a lowering takes on the host",
    "plugins/torch/held.py": "places in pages of memory",
}
ARITHMETIC = {
    *(
        "arange",
        "clip",
        "cumsum",
        "indices",
        "maximum",
        "minimum",
        "outer",
        "ravel_multi_index",
        "repeat",
        "tril",
        "triu",
        "where",
    ),
    *("ceil", "ceil_div", "cos", "exp", "expm1", "floor", "log", "log1p", "pow", "power", "rint", "round_up", "sin"),
    *("sqrt", "tanh", "trunc"),
}
# problems that do the work of several
FUSIONS = {"FusedProblem", "SeparableProblem", "GradientsProblem"}
# modules of adapters that measure and compare single problems, or name their shapes in commands: no translations
ABOUT_PROBLEMS = re.compile(r"plugins/(command_line/|\w+/(bench_|check|tune)\w*\.py)")
# builders as adapters name them
BUILDERS = {"build", "nn", "graph", "builder"}
# calls whose arguments are estimates of what a lowering takes on the host
BUDGETS = re.compile(r"make_room$|\bbudget\.\w+$")
# what is divided by a name is a file's folder
A_FOLDER = re.compile(r"(folder|path)$", re.IGNORECASE)
# a value of an expression next to an operation, or a function that is called; and what may have a docstring
CALLED = "ceil clamp erf exp expm1 fabs floor fmax fmin fmod hypot log log1p pow rint rsqrt select sign sqrt tanh trunc"
FORMULA = re.compile(
    rf"(?<!\\)\bx\d+\b *[-+*/?<>=,)]|[-+*/?<>=(] *x\d+\b|\by\d+ *=(?!=) *\S|\b(?:{'|'.join(CALLED.split())})\([^)]"
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
# package -> packages that it may import directly: the package order of the architecture. The __init__ of a top-level
# folder, which may import everything in it, is written with a dot.
ALLOWED = {
    **{leaf: set() for leaf in LEAVES},
    "core.files": {"core.errors"},
    "core.selection": {"core.errors"},
    "core.settings": {"core.errors"},
    "core.abi": set(),
    "core.problem": {"core.errors"},
    "core.planning": {"core.errors", "core.problem"},
    **{module: {"core.errors", "core.files"} for module in BELOW_TOOLCHAINS},
    "core.runtime.toolchains": {"core.errors", "core.files", "core.planning", "core.problem", *BELOW_TOOLCHAINS},
    "core.runtime": {
        *("core.abi", "core.errors", "core.files", "core.planning", "core.problem", "core.runtime.toolchains"),
        *BELOW_TOOLCHAINS,
    },
    "core.session": {"core.abi", "core.errors", "core.planning", "core.problem", "core.runtime"},
    "core.operators": {"core.errors", "core.planning", "core.problem"},
    "core.graph": {"core.errors", "core.operators", "core.planning", "core.problem", "core.runtime"},
    "core.nn": {"core.errors", "core.graph", "core.operators", "core.problem"},
    "core.model": {
        *("core.errors", "core.graph", "core.nn", "core.operators", "core.planning", "core.problem", "core.session"),
    },
    "core.tuning": {
        *("core.abi", "core.errors", "core.graph", "core.operators"),
        *("core.planning", "core.problem", "core.runtime", "core.session"),
    },
    "core.": {
        *("core.abi", "core.errors", "core.graph", "core.nn", "core.operators", "core.planning"),
        *("core.problem", "core.runtime", "core.session", "core.tuning"),
    },
    "mxnet_ops.engine": {"core"},
    "mxnet_ops.operators": {"core", "mxnet_ops.engine"},
    "mxnet_ops.guards": {"core", "mxnet_ops.engine"},
    "mxnet_ops.optimizers": {"core", "mxnet_ops.engine"},
    "mxnet_ops.regions": {"core", "mxnet_ops.engine"},
    "mxnet_ops.frozen": {"core", "mxnet_ops.engine", "mxnet_ops.guards", "mxnet_ops.regions"},
    "mxnet_ops.swap": {"core", "mxnet_ops.engine", "mxnet_ops.guards", "mxnet_ops.operators"},
    "mxnet_ops.training": {
        *("core", "mxnet_ops.engine", "mxnet_ops.frozen", "mxnet_ops.guards", "mxnet_ops.optimizers"),
        "mxnet_ops.regions",
    },
    "mxnet_ops.symbols": {
        *("core", "mxnet_ops.engine", "mxnet_ops.operators", "mxnet_ops.regions", "mxnet_ops.swap"),
    },
    "mxnet_ops.": {
        "core",
        "mxnet_ops.engine",
        "mxnet_ops.frozen",
        "mxnet_ops.guards",
        "mxnet_ops.operators",
        "mxnet_ops.optimizers",
        "mxnet_ops.regions",
        "mxnet_ops.swap",
        "mxnet_ops.training",
    },
    "caffe_layers.prototxt": {"core"},
    "caffe_layers.regions": {"core", "caffe_layers.prototxt"},
    "caffe_layers.layers": {"core", "caffe_layers.prototxt", "caffe_layers.regions"},
    "caffe_layers.swap": {"core", "caffe_layers.prototxt"},
    "caffe_layers.hosted": {
        *("core", "caffe_layers.", "caffe_layers.layers", "caffe_layers.prototxt", "caffe_layers.regions"),
        "caffe_layers.swap",
    },
    "caffe_layers.nets": {
        *("core", "caffe_layers.", "caffe_layers.hosted", "caffe_layers.layers", "caffe_layers.prototxt"),
        *("caffe_layers.regions", "caffe_layers.swap"),
    },
    "caffe_layers.data": {"core", "caffe_layers.nets", "caffe_layers.prototxt"},
    "caffe_layers.solver": {"core", "caffe_layers.data", "caffe_layers.nets", "caffe_layers.prototxt"},
    "caffe_layers.library": {"core", "caffe_layers.", "caffe_layers.hosted"},
    "caffe_layers.native": {"core", "caffe_layers.library"},
    "caffe_layers.": {"core", "caffe_layers.layers", "caffe_layers.prototxt", "caffe_layers.swap"},
    "plugins.plugin": {"core"},
    "plugins.registry": {"core", "plugins.plugin"},
    "plugins.alone": set(),
    "plugins.command_line": {"core", "plugins.alone", "plugins.plugin", "plugins.registry"},
    "plugins.mxnet": {"core", "mxnet_ops", "plugins.command_line", "plugins.plugin", "plugins.registry"},
    "plugins.caffe": {
        *("core", "caffe_layers", "plugins.command_line", "plugins.models.groups", "plugins.plugin"),
        "plugins.registry",
    },
    "plugins.onnx": {"core", "plugins.command_line", "plugins.plugin", "plugins.registry"},
    "plugins.torch": {"core", "plugins.command_line", "plugins.plugin", "plugins.registry"},
    "plugins.models.groups": {"core", "plugins.plugin"},
    "plugins.models": {
        *("core", "caffe_layers", "mxnet_ops", "plugins.command_line", "plugins.onnx", "plugins.plugin"),
    },
    "plugins.": {"plugins.plugin", "plugins.registry"},
}
# modules that stand for a package of their own
SINGLE = {*LEAVES, "plugins.alone", "plugins.plugin", "plugins.registry"}


@cache
def tree(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree."""
    return tuple(ast.walk(tree(path)))


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """Forget the trees after this file's tests."""
    yield
    tree.cache_clear()
    nodes.cache_clear()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import in a file: also inside functions and under TYPE_CHECKING."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "." * node.level + (node.module or "")
            else:
                for alias in node.names:
                    yield node.lineno, f"{node.module}.{alias.name}"


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    """Return a file's module, without `clgraft`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for folder in FOLDERS for path in files(folder)}


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of our modules that a file imports; a package's names count as the package."""
    for line, name in imports(path):
        if name.startswith("clgraft."):
            found = name.split(".", 1)[1]
            while found and found not in MODULES:
                found = found.rpartition(".")[0]
            if found:
                yield line, found


def package_of(module: str) -> str:
    """Return the package that a module belongs to, as `ALLOWED` calls it."""
    parts = module.split(".")
    nested = [".".join(parts[:count]) for count in range(len(parts), 2, -1)]
    for package in nested:
        if package in ALLOWED:
            return package
    return f"{parts[0]}." if len(parts) == 1 else ".".join(parts[:2])


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_are_absolute_and_frameworks_their_adapters(folder):
    wrong = []
    for path in files(folder):
        for line, name in imports(path):
            place = f"{path.relative_to(ROOT)}:{line} imports {name}"
            first = name.split(".")[0]
            if name.startswith("."):
                wrong.append(f"{place}, expected an absolute name")
            elif first in FOLDERS:
                wrong.append(f"{place}, expected clgraft.{name}")
            elif first in FRAMEWORKS - MAY_IMPORT_FRAMEWORK[folder]:
                wrong.append(f"{place}, a framework that is not {folder}'s")
    assert not wrong, "\n".join(wrong)
    assert files(folder)


def expected_of(package: str, target: str) -> bool:
    """Return whether a package may import another one."""
    if target in LEAVES or target == package:
        return True
    parts = target.split(".")
    return any(".".join(parts[:count]) in ALLOWED[package] for count in range(1, len(parts) + 1))


@pytest.mark.parametrize("folder", FOLDERS)
def test_packages_import_only_what_is_below_them(folder):
    wrong = []
    for path in files(folder):
        package = package_of(module_of(path))
        if module_of(path) in OUTSIDE:
            continue
        if package not in ALLOWED:
            wrong.append(f"{path.relative_to(ROOT)}: got package {package}, expected one of {sorted(ALLOWED)}")
            continue
        for line, module in imported_modules(path):
            if not expected_of(package, package_of(module)):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}, which is not below {package}")
    assert not wrong, "\n".join(wrong)


def public_names(path: Path) -> set[str] | None:
    """Return what `__all__` of a file lists; None if it has none."""
    for node in tree(path).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return set(ast.literal_eval(node.value))
    return None


@pytest.mark.parametrize("folder", ADAPTERS)
def test_adapters_import_the_core_by_its_public_names(folder):
    """They name modules of it that lie at most two levels deep, and there what packages list as theirs."""
    wrong = []
    for path in files(folder):
        for line, name in imports(path):
            if not name.startswith("clgraft.core."):
                continue
            place, module = f"{path.relative_to(ROOT)}:{line} imports {name}", name.split(".", 1)[1]
            while module not in MODULES:
                module = module.rpartition(".")[0]
            left = name.split(".", 1)[1][len(module) + 1 :]
            if module.count(".") > LEVELS:
                wrong.append(f"{place}, a module more than {LEVELS} levels below core")
            listed = public_names(MODULES[module]) if MODULES[module].name == "__init__.py" else None
            hidden = any(part.startswith("_") for part in (*module.split("."), *left.split(".")))
            if hidden or (left and listed is not None and left not in listed):
                wrong.append(f"{place}, which is not public")
    assert not wrong, "\n".join(wrong)


def test_the_order_has_no_cycle():
    """What the order allows is itself free of cycles, so no import can close one between packages."""
    done: set[str] = set()
    while len(done) < len(ALLOWED):
        ready = {p for p, below in ALLOWED.items() if p not in done and {b for b in below if b in ALLOWED} <= done}
        assert ready, f"a cycle among {sorted(set(ALLOWED) - done)}"
        done |= ready


def test_modules_have_no_cycle():
    """Modules import each other in no circle, whether or not Python notices it."""
    graph = {module: {m for _, m in imported_modules(path) if m != module} for module, path in MODULES.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(module: str) -> None:  # Tarjan's strongly connected components
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            place = stack.index(module)
            circle = stack[place:]
            del stack[place:]
            if len(circle) > 1:
                circles.append(sorted(circle))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    assert not circles, "\n".join(" <-> ".join(circle) for circle in circles)


EXTENSIONS = re.compile(r"\b(cl_)?intel_\w+")


def test_only_toolchains_name_drivers():
    """In Python, C and kernels, comments included: a new driver or the end of one concerns that folder alone."""
    wrong = []
    for folder in (*FOLDERS, "kernels"):
        names = re.compile(DRIVERS if folder == "kernels" else f"{DRIVERS}|{GENERATIONS}", re.IGNORECASE)
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            is_generated = path.suffix == ".c" and path.name.startswith("_")  # by cffi
            if path.suffix not in (".py", ".c", ".h", ".cpp", ".hpp", ".cl") or is_generated:
                continue
            if not name.startswith(f"{TOOLCHAINS}/"):
                text = path.read_text(encoding="utf-8")
                if "/micro/" in name:  # an instruction has the name that its extension gives it
                    text = EXTENSIONS.sub("", text)
                lines = enumerate(text.splitlines(), 1)
                wrong += [f"{name}:{number}: {line.strip()}" for number, line in lines if names.search(line)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", ["mxnet_ops", "caffe_layers"])
def test_adapters_write_no_expressions(folder):
    """What is computed of each element is written in core/nn: adapters make no pointwise problems of texts."""
    wrong = []
    for path in files(folder):
        name = path.relative_to(ROOT).as_posix()
        for node in nodes(path):
            called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
            if called in ("PointwiseProblem", "pointwise") and name not in USERS_EXPRESSIONS:
                wrong.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", ADAPTERS)
def test_adapters_name_no_fusions(folder):
    """Passes of graphs alone choose problems that do the work of several."""
    wrong = []
    for path in files(folder):
        for node in nodes(path):
            named = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
            named |= {node.attr} if isinstance(node, ast.Attribute) else set()
            wrong += [f"{path.relative_to(ROOT)}:{node.lineno}: {name}" for name in named & FUSIONS]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", ADAPTERS)
def test_adapters_hold_no_formulas(folder):
    """They take the formulas of their operators from core/nn: none of their texts is one."""
    wrong = []
    for path in files(folder):
        if path.relative_to(ROOT).as_posix() in USERS_EXPRESSIONS:
            continue
        docstrings = {
            ast.get_docstring(node, clean=False)
            for node in nodes(path)
            if hasattr(node, "body") and isinstance(node, DOCUMENTED)
        }
        for node in nodes(path):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if FORMULA.search(text) and text not in docstrings:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text!r}")
    assert not wrong, "\n".join(wrong)


def translations(folder: str) -> Iterator[Path]:
    """Yield a folder's files that translate operators."""
    for path in files(folder):
        name = path.relative_to(ROOT).as_posix()
        if name not in COMPUTED and not ABOUT_PROBLEMS.match(name):
            yield path


@pytest.mark.parametrize("folder", TRANSLATIONS)
def test_translations_compute_nothing(folder):
    """Tables, sizes that are rounded and functions of parameters are computed in core/nn, where operators have them."""
    wrong = []
    for path in translations(folder):
        for node in nodes(path):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            module, _, function = called.rpartition(".")
            if function in ARITHMETIC and module in ("", "math", "np"):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", ADAPTERS)
def test_adapters_make_no_problems(folder):
    """Which problems an operator is made of is chosen in core/nn: adapters call functions of it.

    They import no problems, add none to a graph, and call nothing that returns one.
    """
    wrong = []
    for path in files(folder):
        name = path.relative_to(ROOT).as_posix()
        if name in USERS_EXPRESSIONS or ABOUT_PROBLEMS.match(name):
            continue
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom):
                found = {alias.name for alias in node.names}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                added = node.func.attr == "add" and ast.unparse(node.func.value).rpartition(".")[2] in BUILDERS
                found = {"AddedProblem"} if added else {node.func.attr}
            else:
                found = {node.attr} if isinstance(node, ast.Attribute) else set()
            if any(re.search(r"[a-z0-9]Problem$|_problem$", one) for one in found):
                wrong.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", TRANSLATIONS)
def test_translations_divide_nothing(folder):
    """Shares, means and parts of sizes are computed in core/nn."""
    wrong = []
    for path in translations(folder):
        calls = (node for node in nodes(path) if isinstance(node, ast.Call))
        estimated = {id(part) for call in calls if BUDGETS.search(ast.unparse(call.func)) for part in ast.walk(call)}
        for node in nodes(path):
            quotient = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv))
            if quotient and id(node) not in estimated and not A_FOLDER.search(ast.unparse(node.left)):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", TRANSLATIONS)
def test_translations_raise_to_no_powers(folder):
    """Corrections, decays and the like are computed in core/nn; squares of sizes and bounds of types are numbers."""
    wrong = []
    for path in translations(folder):
        for node in nodes(path):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not _is_number(node.right):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


@pytest.mark.parametrize("name", COMPUTED)
def test_exceptions_are_needed(name):
    """Each of them has arithmetic that would be found."""
    found = nodes(ROOT / name)
    called = {ast.unparse(node.func).rpartition(".")[2] for node in found if isinstance(node, ast.Call)}
    divided = any(isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv)) for node in found)
    assert divided or ARITHMETIC & called


@pytest.mark.parametrize("folder", TRANSLATIONS)
def test_translations_state_no_gradients(folder):
    """Gradients are those of graphs, or stated in core/nn; only expressions of users come with theirs."""
    wrong = []
    for path in files(folder):
        if path.relative_to(ROOT).as_posix() in USERS_EXPRESSIONS:
            continue
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and node.attr in ("state_gradient", "gradients", "with_direction"):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", ["core/planning", "core/operators", "core/graph"])
def test_planners_choose_by_capabilities(folder):
    """They read nothing of a device that only says which one it is, and compare its class with no name."""
    wrong = []
    for path in files(folder):
        for node in nodes(path):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if (
                isinstance(node, ast.Attribute)
                and node.attr in NAMES_OF_DEVICES
                and "device" in ast.unparse(node.value)
            ):
                wrong.append(f"{place}: {ast.unparse(node)}")
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                if any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides):
                    wrong += [f"{place}: {ast.unparse(node)}" for side in sides if "device_class" in ast.unparse(side)]
    assert not wrong, "\n".join(wrong)


def test_the_command_line_names_no_plugin():
    """The command line finds plugins through the registry: no framework's plugin is imported or named as a module."""
    wrong = []
    for path in files("plugins/command_line"):
        for node in nodes(path):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and text.startswith(("clgraft.plugins.mxnet", "clgraft.plugins.caffe")):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text!r}")
    assert not wrong, "\n".join(wrong)


def test_kernels_hold_opencl_only():
    kinds = {
        path.suffix for path in (ROOT / "kernels").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert kinds <= {".cl", ".h", ".py"}
    assert {path.name for path in (ROOT / "kernels").rglob("*.py")} <= {"__init__.py"}


def test_no_kernels_inside_python():
    """OpenCL C stands in files: the words that start a kernel occur in no string of the package."""
    for folder in FOLDERS:
        for path in files(folder):
            for node in nodes(path):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert "__kernel void" not in node.value, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_swap_tools_need_no_framework():
    """Importing the registry and both sides' tools must not load a framework."""
    script = (
        "import sys; import clgraft.plugins, clgraft.plugins.command_line, clgraft.caffe_layers.swap;"
        "clgraft.plugins.plugins(); clgraft.load;"
        "sys.exit(bool({'mxnet', 'caffe'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_tuned_results_depend_on_every_source(tmp_path, monkeypatch):
    """A change in any file below core/ and kernels/, however deep, makes another digest."""
    from clgraft.core.tuning import identity

    for folder in ("core", "kernels"):
        ignore = shutil.ignore_patterns("__pycache__", "*.so", "*.o", "_*.c")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    monkeypatch.setattr(identity, "PACKAGE", tmp_path)
    sources = set(identity.sources())
    kinds: dict[str, int] = defaultdict(int)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            kinds[path.suffix] += 1
            assert path in sources, f"{path.relative_to(tmp_path)} is no source of a result"
    assert {".py", ".c", ".h", ".txt", ".cl"} <= set(kinds)
    digest = identity.source_digest.__wrapped__
    seen = {digest()}
    for name in ("core/new.py", "core/operators/a/b/c/deep.py", "core/operators/a/rows.txt", "kernels/a/b/deep.cl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
        seen.add(digest())
        path.write_text("2")
        seen.add(digest())
    assert len(seen) == 9


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_say_what_is_returned(folder):
    wrong = []
    for path in files(folder):
        for node in nodes(path):
            if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            text = ast.get_docstring(node) or ""
            first = text.split(maxsplit=1)[0] if text else ""
            if first.startswith("Give") or (_is_verb_expected(node) and first in NO_VERBS):
                wrong.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}")
    assert not wrong, f"{len(wrong)} docstrings start with no verb, expected 'Return' or the like:\n" + "\n".join(wrong)


def _is_verb_expected(node: ast.AST) -> bool:
    """Return whether a docstring is a function's: those of modules, classes and properties may start with a noun."""
    decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", ())]
    is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return is_function and not any("property" in each for each in decorators)
