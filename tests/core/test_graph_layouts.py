"""The pass that assigns layouts: what it computes, and how many conversions it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import Graph, GraphBuilder, parse_graph
from clgraft.core.graph.passes import Image, Preferences, optimise, settled
from clgraft.core.graph.passes.layouts import Assignment
from clgraft.core.graph.reference import evaluate
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.problem.layout import LAST
from clgraft.core.session.context import Context
from tests.core.graphs import EPS, sample

ALWAYS = Preferences(lambda problem: True)
RELU = "y0 = x0 > 0 ? x0 : 0;"


class Net:
    """Layers with weights of their own, for images (batch, channels, height, width)."""

    def __init__(self, dtype: str = "float32", training: bool = False) -> None:
        self.on, self.dtype, self.training = GraphBuilder(), dtype, training
        self.word = {"float32": "", "float16": "f16 ", "bfloat16": "bf16 "}[dtype]
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.weights: list[str] = []

    def input(self, *shape: int) -> str:
        name = self.on.input(f"x{len(self.shapes)}", shape, self.dtype)
        self.shapes[name] = shape
        return name

    def parameter(self, *shape: int, word: str = "w") -> str:
        self.weights.append(self.on.input(f"p{len(self.weights)}.{word}", shape, self.dtype))
        return self.weights[-1]

    def add(self, kind: str, text: str, *reads: str, shape: tuple[int, ...], scalars: dict | None = None) -> str:
        (direction, _, rest) = text.partition(" ")
        words = f"{kind} {direction} {self.word}{rest}" if kind != "pointwise" else f"pointwise {self.word}{text}"
        (name, *_) = self.on.add(words, *reads, scalars=scalars)
        self.shapes[name] = shape
        return name

    def conv(self, x: str, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> str:
        n, c, h, w = self.shapes[x]
        pad = kernel // 2
        oh, ow = ((size + 2 * pad - kernel) // stride + 1 for size in (h, w))
        text = f"forward g{groups} n{n} ic{c} ih{h} iw{w} oc{outputs} kh{kernel} kw{kernel} sh{stride} sw{stride}"
        weights = self.parameter(outputs, c // groups, kernel, kernel)
        return self.add("conv", f"{text} ph{pad} pw{pad}", x, weights, shape=(n, outputs, oh, ow))

    def norm(self, x: str) -> str:
        n, c, h, w = self.shapes[x]
        read = [x, self.parameter(c, word="gamma"), self.parameter(c, word="beta")]
        if not self.training:
            read += [self.parameter(c, word=word) for word in ("mean", "var")]
        direction = "forward_training" if self.training else "forward_inference"
        return self.add("batchnorm", f"{direction} n{n} c{c} s{h * w}", *read, shape=self.shapes[x], scalars=EPS)

    def each(self, text: str, *xs: str) -> str:
        """Return a pointwise problem of values and, with smaller shapes, of what broadcasts to them."""
        listed = (f"x{i}[{','.join(map(str, self.shapes[x]))}]" for i, x in enumerate(xs))
        return self.add("pointwise", f"{' '.join(listed)} : {text}", *xs, shape=self.shapes[xs[0]])

    def relu(self, x: str) -> str:
        return self.each(RELU, x)

    def block(self, x: str, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> str:
        return self.relu(self.norm(self.conv(x, outputs, kernel, stride, groups)))

    def pool(self, x: str, words: str, kernel: int, stride: int) -> str:
        n, c, h, w = self.shapes[x]
        oh, ow = ((size - kernel) // stride + 1 for size in (h, w))
        text = f"forward {words} n{n} c{c} ih{h} iw{w} kh{kernel} kw{kernel} sh{stride} sw{stride}"
        name = self.on.add(text.replace("forward", "pool forward").replace(words, f"{words} {self.word}"), x)[0]
        self.shapes[name] = (n, c, oh, ow)
        return name

    def concat(self, *xs: str) -> str:
        n, _, h, w = self.shapes[xs[0]]
        extents = [self.shapes[x][1] for x in xs]
        text = f"forward outer[{n}] extents[{','.join(map(str, extents))}] inner[{h * w}]"
        return self.add("concat", text, *xs, shape=(n, sum(extents), h, w))

    def classified(self, x: str, outputs: int = 5) -> str:
        n, c, h, _ = self.shapes[x]
        mean = self.pool(x, "average", h, 1)
        weights, bias = self.parameter(outputs, c), self.parameter(outputs, word="b")
        return self.add("dense", f"forward n{n} i{c} o{outputs} b1", mean, weights, bias, shape=(n, outputs))


def resnet(net: Net) -> Graph:
    x = net.pool(net.block(net.input(2, 3, 19, 19), 8, 7, 2), "max", 2, 2)
    a = net.norm(net.conv(net.block(net.block(x, 4, 1), 4, 3), 16, 1))
    x = net.relu(net.each("y0 = x0 + x1;", a, net.norm(net.conv(x, 16, 1))))
    a = net.norm(net.conv(net.block(x, 16), 16))
    return net.on.graph(net.classified(net.relu(net.each("y0 = x0 + x1;", a, x))))


def mobilenet(net: Net) -> Graph:
    x = net.block(net.input(2, 3, 12, 12), 8, 3, 2)
    x = net.block(net.block(net.block(x, 16, 1), 16, 3, 2, 16), 12, 1)
    a = net.norm(net.conv(net.block(net.block(x, 24, 1), 24, 3, 1, 24), 12, 1))
    x = net.each("y0 = x0 + x1;", a, x)
    squeezed = net.pool(x, "average", 3, 1)  # squeeze and excitation: a factor for each channel of each image
    gate = net.each("y0 = 1 / (1 + exp(-x0));", net.conv(squeezed, 12, 1))
    return net.on.graph(net.classified(net.each("y0 = x0 * x1;", x, gate)))


def inception(net: Net) -> Graph:
    x = net.block(net.input(2, 3, 9, 9), 8)
    x = net.concat(net.block(x, 4, 1), net.block(net.block(x, 4, 1), 8, 5), net.conv(x, 6, 1), x)
    mean = net.pool(net.block(x, 12), "average", 3, 3)
    return net.on.graph(net.concat(mean, net.pool(x, "max", 3, 3)))


def unet(net: Net) -> Graph:
    x = net.block(net.input(2, 3, 8, 10), 6)
    deep = net.block(net.pool(x, "max", 2, 2), 8)
    n, c, h, w = net.shapes[deep]
    text = f"interpolate forward linear {net.word}n{n} c{c} ih{h} iw{w} oh{2 * h} ow{2 * w}"
    (wide,) = net.on.add(text, deep)
    net.shapes[wide] = (n, c, 2 * h, 2 * w)
    return net.on.graph(net.conv(net.block(net.concat(wide, x), 6), 4, 1))


NETS: dict[Callable[[Net], Graph], int] = {resnet: 1, mobilenet: 1, inception: 2, unet: 2}


def names(nets: dict) -> list[str]:
    return [net.__name__ for net in nets]


def expect_close(graph: Graph, changed: Graph, arrays: dict[str, np.ndarray]) -> None:
    """Expect two graphs to compute the same in float64."""
    one, two = evaluate(graph, arrays), evaluate(changed, arrays)
    for name in graph.outputs:
        np.testing.assert_allclose(two[name].ravel(), one[name].ravel(), rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("make", "conversions"), NETS.items(), ids=names(NETS))
def test_nets_compute_the_same_with_conversions_at_their_borders(make, conversions, training, rng):
    net = Net(training=training)
    graph = make(net)
    if training:
        graph = graph.gradients([*(name for name in net.weights), "x0"])
        # the gradient of what comes out, which a classifier's dense layer makes, and that of the images
        conversions *= 2
    assignment = Assignment(graph, ALWAYS)
    changed = assignment.graph(graph)
    expect_close(graph, changed, sample(graph, rng))
    assert assignment.conversions == conversions
    windows = [node.problem for node in changed.nodes if isinstance(node.problem, ConvProblem)]
    assert windows and all(problem.layout == LAST for problem in windows)


def preferring() -> Context:
    """Return a context that plans for a device with matrix units, and runs on this one."""
    context = Context.on(None)
    context.device = replace(context.device, halves=("mma-float16", "mma-bfloat16"))
    return context


@pytest.mark.parametrize(("make", "training"), [(resnet, True), (unet, False)])
def test_devices_with_matrix_units_compute_small_types_in_channels_last(make, training, rng):
    net = Net("float16", training)
    graph = make(net)
    if training:
        graph = graph.gradients(net.weights)
    arrays = sample(graph, rng)
    expected = evaluate(graph, arrays)
    constants = {} if training else {name: arrays[name] for name in net.weights}
    compiled = preferring().compile(graph, constants=constants)
    found = compiled.run({name: array for name, array in arrays.items() if name not in constants})
    plain = core.context().compile(graph, "-layouts", constants=constants)
    first = plain.run({name: array for name, array in arrays.items() if name not in constants})
    assert (compiled.report().conversions > 0, plain.report().conversions) == (True, 0)
    for name in graph.outputs:
        scale = np.abs(expected[name]).max() or 1.0
        errors = [np.abs(out[name].astype(np.float64).ravel() - expected[name].ravel()).max() for out in (found, first)]
        assert errors[0] <= max(2 * errors[1], 2e-3 * scale), (name, errors, scale)


HEAD = "input x[2,6,4,5] w[8,6,3,3] b[8] m[1,8,4,5] u[2,8]\nv = x w | conv forward n2 ic6 ih4 iw5 oc8 kh3 kw3 ph1 pw1\n"
# what follows a convolution and has a form in channels last: lines that make y of v, and the conversions of the graph
FOLLOWING = {
    "bias": ("y = v b | pointwise x0[2,8,4,5] x1[8,1,1] : y0 = x0 + x1", 2),
    "position": ("y = v m | pointwise x0[2,8,4,5] x1[1,8,4,5] : y0 = x0 * x1", 2),
    "image": ("y = v u | pointwise x0[2,8,20] x1[2,8,1] : y0 = x0 * x1", 2),
    "flat": ("y = v | pointwise x0[320] : y0 = tanh(x0)", 2),
    "sums": ("y = v | pointwise x0[2,8,20] y0=sum[0,2] : y0 = x0", 1),
    "sums-kept": ("y = v | pointwise x0[2,8,4,5] y0[2,1,4,5]=max : y0 = x0", 1),
    "sums-of-rows": ("y = v | pointwise x0[2,8,4,5] y0=sum[3] : y0 = x0", 2),
    "softmax": ("y = v {scale=1.0} | softmax forward n2 c8 s20", 2),
    "softmax-of-rows": ("y = v {scale=1.0} | softmax forward n64 c5", 2),
    "lrn": ("y = v {alpha=0.5, k=2.0} | lrn forward n2 c8 s20 size5 beta0.75", 2),
    "slice": ("y = v | slice forward x[2,8,4,5] y[2,3,2,2] at[0,4,1,1] step[1,1,1,2]", 2),
    "pad": ("y = v | pad forward edge x[2,8,4,5] before[0,0,1,2] behind[0,0,0,1]", 2),
    "repeat": ("y = v | repeat x[2,8,4,5] times[1,1,2,2]", 2),
    "rows": ("y = v v | concat forward outer[16] extents[4,4] inner[5]", 2),
    "images": ("y = v v | concat forward outer[1] extents[2,2] inner[160]", 2),
    "split": ("y _ = v | concat backward outer[2] extents[5,3] inner[20]", 2),
    "shuffle": ("y = v | transpose x[2,2,4,20] axes[0,2,1,3]", 2),
    "turned-rows": ("y = v | transpose x[2,8,4,5] axes[0,1,3,2]", 2),
    "turned": ("y = v | transpose x[2,8,4,5] axes[1,0,2,3]", 2),
    "to-last": ("y = v | transpose x[2,8,4,5] axes[0,2,3,1]", 1),
    "to-last-and-back": (
        "t = v | transpose x[2,8,20] axes[0,2,1]\ns = t | pointwise x0[320] : y0 = x0 + 1\n"
        "y = s | transpose x[2,20,8] axes[0,2,1]",
        1,
    ),
    "resample": ("y = v i f | resample outer16 in4 out7 inner5 taps2", 2),
    "deconv": ("y = v d | deconv forward n2 ic8 oc3 ih4 iw5 kh2 kw2 sh2 sw2", 2),
    "dense": ("y = v e | dense forward n2 i160 o3", 2),
}
MORE = "input i:i32[7,2] f[7,2] d[8,3,2,2] e[3,160]\n"


@pytest.mark.parametrize("name", FOLLOWING)
def test_what_follows_a_convolution_is_in_its_layout(name: str, rng) -> None:
    text, conversions = FOLLOWING[name]
    graph = parse_graph(f"{MORE}{HEAD}{text}\noutput y")
    arrays = {**sample(graph, rng), "i": rng.integers(0, 4, (7, 2)).astype(np.int32)}
    assignment = Assignment(graph, ALWAYS)
    changed = assignment.graph(graph)
    expect_close(graph, changed, arrays)
    assert assignment.conversions == conversions
    back = graph.gradients(["w", "x"]) if name not in ("split", "resample", "pad") else None
    if back is not None:
        expect_close(back, Assignment(back, ALWAYS).graph(back), {**arrays, **sample(back, rng), "i": arrays["i"]})


def test_transpositions_at_the_borders_are_dropped(rng) -> None:
    """Of models in channels last, with their weights and gradients."""
    graph = parse_graph(
        """
        input x[2,4,5,6] w[8,3,3,6] dy[2,4,5,8]
        x1 = x | transpose x[2,4,5,6] axes[0,3,1,2]
        w1 = w | transpose x[8,3,3,6] axes[0,3,1,2]
        v = x1 w1 | conv forward n2 ic6 ih4 iw5 oc8 kh3 kw3 ph1 pw1
        z = v | pointwise x0[2,8,4,5] : y0 = tanh(x0)
        y = z | transpose x[2,8,4,5] axes[0,2,3,1]
        g = dy | transpose x[2,4,5,8] axes[0,3,1,2]
        r = x1 g | conv backward_filter n2 ic6 ih4 iw5 oc8 kh3 kw3 ph1 pw1
        dw = r | transpose x[8,6,3,3] axes[0,2,3,1]
        output y dw v
        """
    )
    assignment = Assignment(graph, ALWAYS)
    changed = assignment.graph(graph)
    expect_close(graph, changed, sample(graph, rng))
    kinds = [node.problem.kind for node in changed.nodes]
    assert (kinds, assignment.conversions) == (["conv", "pointwise", "conv", "transpose"], 1)  # v stays an output


def test_what_has_no_form_in_channels_last_stays(rng) -> None:
    """Random numbers belong to places, states are changed in place, and whole numbers are not converted."""
    graph = parse_graph(
        f"""{HEAD.replace(" u[2,8]", " u[2,8] key:i32[4]")}
        state s[320]
        t = v key {{keep=0.5, scale=2.0}} | dropout forward x[2,8,4,5]
        s = t s | pointwise x0[320] beta{{1}} : y0 = x0
        y k = t | pool forward_argmax max n2 c8 ih4 iw5 kh2 kw2
        output y k"""
    )
    assignment = Assignment(graph, ALWAYS)
    changed = assignment.graph(graph)
    arrays = {**sample(graph, rng), "key": np.arange(4, dtype=np.int32)}
    expect_close(graph, changed, arrays)
    assert [getattr(node.problem, "layout", "") for node in changed.nodes].count(LAST) == 1
    assert assignment.conversions == 2


def test_convolutions_that_are_served_by_transpositions_follow_their_neighbours() -> None:
    wanted = Preferences(lambda problem: problem.in_channels == 8, lambda problem: problem.kind != "conv")
    text = (
        "input x[2,3,40,40] w[8,3,3,3] w1[8,8,3,3] w2[8,1,3,3]\n"
        "a = x w | conv forward n2 ic3 ih40 iw40 oc8 kh3 kw3 ph1 pw1\n"
        "b = a w1 | conv forward n2 ic8 ih40 iw40 oc8 kh3 kw3 ph1 pw1\n"
        "c = b w2 | conv forward g8 n2 ic8 ih40 iw40 oc8 kh3 kw3 ph1 pw1\n"
        "y = c w1 | conv forward n2 ic8 ih40 iw40 oc8 kh3 kw3 ph1 pw1\noutput y"
    )
    graph = parse_graph(text)
    some = replace(wanted, wants=lambda problem: problem.in_channels == 8 and problem.groups == 1)
    layouts = [
        node.problem.layout for node in Assignment(graph, some).graph(graph).nodes if node.problem.kind == "conv"
    ]
    assert layouts == ["nchw", "nhwc", "nchw", "nhwc"]  # turning both values costs as much as turning them inside
    assert optimise(graph, "-all,layouts") is graph


def parts(graph: Graph, count: int) -> tuple[Graph, Graph, list[str]]:
    """Return the first nodes of a graph, the others, and the values that these read of those."""
    values, nodes = graph.values, (graph.nodes[:count], graph.nodes[count:])
    made = [{name for node in part for name in node.writes} for part in nodes]
    read = dict.fromkeys(name for node in nodes[1] for name in node.reads)
    kept = [name for name in read if name in made[0]]
    outputs = [[name for name in graph.outputs if name in names] for names in made]
    first = Graph(nodes[0], graph.inputs, dict.fromkeys((*outputs[0], *kept)))
    return first, Graph(nodes[1], (*graph.inputs, *(values[name] for name in kept)), tuple(outputs[1])), kept


def expect_parts_close(graph: Graph, count: int, last: dict[str, Image], arrays: dict[str, np.ndarray]) -> int:
    """Expect a graph in two parts, with values in channels last between them, to compute the same in float64.

    Return the number of conversions.
    """
    expected = evaluate(graph, arrays)
    conversions, found = 0, dict(arrays)
    for part in parts(graph, count)[:2]:
        assignment = Assignment(part, ALWAYS, last)
        changed = assignment.graph(part)
        found.update(evaluate(changed, {value.name: found[value.name] for value in changed.inputs}))
        conversions += assignment.conversions
    for name in graph.outputs:
        array = found[name]
        if name in last:
            batch, channels, pixels = last[name]
            array = array.reshape(batch, pixels, channels).swapaxes(1, 2)
        np.testing.assert_allclose(array.ravel(), expected[name].ravel(), rtol=1e-9, atol=1e-9, err_msg=name)
    return conversions


@pytest.mark.parametrize("make", NETS, ids=names(NETS))
def test_parts_hand_values_over_in_channels_last(make, rng):
    """As many conversions as the whole graph has, and the values between the parts have none."""
    net = Net(training=True)
    count = len(make(net).nodes)
    forward = make(Net(training=True))
    graph = forward.gradients([*net.weights, "x0"])
    kept = parts(graph, count)[2]
    last = settled(graph, ALWAYS, kept, count)
    assert last.keys() <= {*kept} and len(last) > 5
    arrays = sample(graph, rng)
    found = expect_parts_close(graph, count, last, arrays)
    whole = Assignment(graph, ALWAYS)
    whole.graph(graph)
    # the images are converted in both parts
    assert found == whole.conversions + 1
    assert expect_parts_close(graph, count, {}, arrays) > found + 5


SPLIT = {
    "read-first": (
        *("v a", "z = v i f | resample outer16 in4 out7 inner5 taps2\nt = a | pointwise x0[320] : y0 = x0 + 1"),
    ),
    "output": ("v a", "t = a v | pointwise x0[2,8,4,5] x1[2,8,4,5] : y0 = x0 * x1"),
    "view": ("q", "s = q | transpose x[2,20,8] axes[0,2,1]\nt = s | pointwise x0[2,8,20] : y0 = x0 + 1"),
    "lone": ("a", "t = a | pointwise x0[2,8,4,5] : y0 = x0 + 1"),
}


@pytest.mark.parametrize("name", SPLIT)
def test_values_between_parts_that_others_read_in_channels_first(name, rng):
    """Whatever is handed over in channels last, also what nobody asks for so."""
    handed, rest = SPLIT[name]
    outputs = f"t r {handed}{' z' * ('z =' in rest)}"
    text = (
        f"{MORE}{HEAD}a = v | pointwise x0[2,8,4,5] : y0 = tanh(x0)\nq = a | transpose x[2,8,20] axes[0,2,1]\n{rest}\n"
        f"r = t w | conv backward_data n2 ic6 ih4 iw5 oc8 kh3 kw3 ph1 pw1\noutput {outputs}"
    )
    graph = parse_graph(text)
    arrays = {**sample(graph, rng), "i": rng.integers(0, 4, (7, 2)).astype(np.int32)}
    image = {"v": Image(2, 8, 20), "a": Image(2, 8, 20), "q": Image(2, 20, 8)}
    for some in (handed.split(), handed.split()[:1], handed.split()[1:]):
        expect_parts_close(graph, 3, {one: image[one] for one in some}, arrays)


def test_whole_numbers_are_handed_over_as_all_want_them(rng):
    text = f"""{HEAD}
        y k = v | pool forward_argmax max n2 c8 ih4 iw5 kh2 kw2
        g = y | pointwise x0[2,8,3,4] : y0 = tanh(x0)
        d = k g | pool backward_argmax max n2 c8 ih4 iw5 kh2 kw2
        r = d w | conv backward_data n2 ic6 ih4 iw5 oc8 kh3 kw3 ph1 pw1
        output r"""
    graph = parse_graph(text)
    arrays = sample(graph, rng)
    last = settled(graph, ALWAYS, ["k", "g"], 3)
    assert last == {"k": Image(2, 8, 12), "g": Image(2, 8, 12)}
    assert expect_parts_close(graph, 3, last, arrays) == 2  # of the images and their gradients
    apart = Preferences(lambda problem: True, lambda problem: problem.kind != "pool")
    assert "k" not in settled(graph, apart, ["k", "g"], 3)


def test_values_in_channels_last_need_the_pass(context):
    graph = parse_graph(f"{HEAD}output v")
    compiled = context.compile(graph, "-layouts", last={"v": Image(2, 8, 20)})
    with pytest.raises(core.ArgumentError, match=r"got values \['v'\] in channels last, expected none without"):
        compiled.report()
