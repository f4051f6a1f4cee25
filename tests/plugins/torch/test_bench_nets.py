"""Whole nets of `clgraft bench --nets` against PyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from clgraft import core  # noqa: E402
from clgraft.core import settings  # noqa: E402
from clgraft.core.planning.floor import floor  # noqa: E402
from clgraft.plugins.command_line.bench import peaks, peer_process, peers  # noqa: E402
from clgraft.plugins.command_line.bench.operators import Missing  # noqa: E402
from clgraft.plugins.command_line.bench.results import Measurement  # noqa: E402
from clgraft.plugins.command_line.main import main  # noqa: E402
from clgraft.plugins.plugin import PluginError  # noqa: E402
from clgraft.plugins.torch import bench_models, bench_nets  # noqa: E402


def tiny():
    layers = [torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Dropout()]
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 5))


@pytest.fixture
def small(fresh, monkeypatch):
    monkeypatch.setitem(bench_nets.NETS, "resnet18", tiny)
    monkeypatch.setattr(bench_nets, "PIXELS", 16)
    monkeypatch.setattr(bench_nets, "CLASSES", 5)


def without_inductor(monkeypatch):
    ways = bench_nets.ways
    kept = lambda what: [way for way in ways(what) if way.by != bench_nets.INDUCTOR]  # noqa: E731
    monkeypatch.setattr(bench_nets, "ways", kept)


def test_the_machinery_measures_a_net(small, monkeypatch):
    monkeypatch.setattr(peaks, "_known", [])
    messages = list(peer_process.work("torch", nets=[("resnet18", 2)], seconds=1e-4, ceilings=(1e11, 1e10)))
    assert "the fastest of eager" in messages[0]["peer"]["mode"] and "adapter" not in messages[0]["peer"]["mode"]
    assert messages[1] == {"doing": "resnet18 batch 2 against torch"} and messages[-1] == {"done": True}
    inference, training = (Measurement(**message["row"]) for message in messages[2:-1])
    assert [row.direction for row in (inference, training)] == ["inference", "training"]
    for row in (inference, training):
        assert (row.name, row.peer, row.group) == ("resnet18 batch 2", "torch", "net")
        assert row.native == row.ways[row.layout] == min(row.ways.values()) > 0 and row.ours > 0 and row.floor > 0
        assert {"eager, channels first", "eager, channels last", "inductor, channels last"} <= {*row.ways}
    assert len(inference.ways) == 4 and len(training.ways) == 3
    assert inference.frozen > 0 and inference.frozen_floor > 0 and inference.uncounted == 0
    assert training.frozen == 0 and training.uncounted == 1  # batch norm's counter


def test_the_floor_is_that_of_what_our_backend_ran(small, monkeypatch):
    without_inductor(monkeypatch)
    monkeypatch.setattr(peaks, "here", lambda: peaks.Peaks(1e11, 1e10))
    seen, row = [], bench_nets._row

    def watched(text, what, steps, times):
        seen.append(steps)
        return row(text, what, steps, times)

    monkeypatch.setattr(bench_nets, "_row", watched)
    rows = list(bench_nets.measure(["resnet18"], [2], 1e-3, 2))
    for found, steps in zip(rows, seen):
        with core.context().watched() as work:
            steps[bench_nets.Way(bench_nets.OURS)].run()
        assert len(work) > 1 and found.floor == floor(work, peaks.here())


@pytest.mark.parametrize("precision", settings.MIXED)
def test_pytorch_has_its_autocast_where_we_have_16_bits(precision, small, monkeypatch):
    """Whichever is faster counts."""
    monkeypatch.setenv("CLGRAFT_PRECISION", precision)
    without_inductor(monkeypatch)
    for row in bench_nets.measure(["resnet18"], [2], 1e-3, 2):
        layouts = [f"eager, channels {layout}" for layout in ("first", "last")]
        assert {*row.ways} == {way + more for way in layouts for more in ("", f", autocast to {precision}")}
        assert row.native == row.ways[row.layout] == min(row.ways.values())
    net = tiny().eval()
    plain, mixed, ours = (
        bench_nets._Step(net, 2, way, "inference")
        for way in (bench_nets.Way("eager"), bench_nets.Way("eager", mixed=precision), bench_nets.Way(bench_nets.OURS))
    )
    with torch.no_grad(), torch.autocast("cpu", getattr(torch, precision)):
        expected = net(mixed.images).float()
    assert torch.equal(mixed.first, expected) and not torch.equal(mixed.first, plain.first)
    assert 0 < (ours.first - plain.first).norm() / plain.first.norm() < bench_nets.MIXED_AGREEMENT


def test_results_that_differ_are_not_measured(small, monkeypatch):
    without_inductor(monkeypatch)
    infer = bench_nets._Step._infer
    wrong = lambda step: infer(step) * (1.01 if step.found.lowered else 1)  # noqa: E731
    monkeypatch.setattr(bench_nets._Step, "_infer", wrong)
    first, _ = bench_nets.measure(["resnet18"], [2], 1e-3, 2)
    assert isinstance(first, Missing) and "results differ by 1.0e-02" in str(first)


def test_a_compiler_that_fails_is_said(small, monkeypatch):
    def compile_nothing(net, **options):
        raise torch._dynamo.exc.TorchDynamoException("no C++ compiler\nand more")

    step = bench_nets._Step._compiled
    fails = lambda self, net, way: compile_nothing(net) if way.by == "inductor" else step(self, net, way)  # noqa: E731
    monkeypatch.setattr(bench_nets._Step, "_compiled", fails)
    said = [str(found) for found in bench_nets.measure(["resnet18"], [2], 1e-3, 2) if isinstance(found, Missing)]
    assert said[0] == "resnet18 batch 2 inference by inductor, channels last: no C++ compiler" and len(said) == 3


def test_nets_have_the_names_of_mxnets():
    known = peers.known()
    assert set(known["torch"].nets) == set(known["mxnet"].nets) == set(bench_nets.NETS)


def test_mobilenet_has_its_published_size():
    net = bench_models.mobilenet()
    assert sum(parameter.numel() for parameter in net.parameters()) == 4_231_976  # 4.2 million
    assert net.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


def test_without_torchvision_the_message_names_it(monkeypatch, capfd):
    find = peers.importlib.util.find_spec
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None if name == "torchvision" else find(name))
    assert main(["bench", "--nets", "resnet18", "--peers", "torch"]) == 1
    expected = (
        "got nets ['resnet18'], expected some of [], nets of the peers ['torch']; those of torch need torchvision"
    )
    assert f"{expected}, which is not installed" in capfd.readouterr().err
    bench_models.torchvision.cache_clear()
    with pytest.raises(PluginError, match="torchvision is needed"):
        bench_models.torchvision()
    bench_models.torchvision.cache_clear()


def test_the_command_measures_a_net_of_one_peer_and_says_which_cannot(monkeypatch, capfd, tmp_path):
    """A peer whose package is missing is left out where another one has the net."""
    from clgraft.plugins.command_line.bench.command import _nets

    monkeypatch.setattr(peers, "lacks", lambda peer: peer.nets_package)
    assert _nets(["mxnet", "torch"], ["resnet18"]) == {"mxnet": ["resnet18"], "torch": []}
    assert capfd.readouterr().err == "not measured: nets: those of torch need torchvision, which is not installed\n"
