"""Trainers of ONNX models: what is trained, batch norms and dropout, losses, the file, and PyTorch's own steps."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
import clgraft  # noqa: E402
from clgraft.core.errors import ClgraftError  # noqa: E402
from clgraft.plugins.onnx import OnnxError, Session  # noqa: E402
from tests.plugins.onnx.models import model, node, small_net  # noqa: E402

RNG = np.random.default_rng(8)
X = RNG.standard_normal((6, 3, 16, 16)).astype(np.float32)
LABELS = np.array([0, 4, 2, 1, 3, 2])
F32, I64 = np.float32, np.int64


def random(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / 4).astype(np.float32)


def with_loss() -> onnx.ModelProto:
    """Return the small net with the loss as an output of its own, of labels that are whole numbers."""
    proto = small_net()
    proto.graph.node.pop()
    added = model(
        [node("SoftmaxCrossEntropyLoss", "g labels", "loss", reduction="mean")],
        {"labels": (I64, ["n"])},
        {"loss": (F32, [])},
    )
    proto.graph.node.extend(added.graph.node)
    proto.graph.input.extend(added.graph.input)
    del proto.graph.output[:]
    proto.graph.output.extend(added.graph.output)
    onnx.checker.check_model(proto)
    return proto


def losses_of(trainer: Any, batch: dict[str, np.ndarray], count: int = 6) -> list[float]:
    return [trainer.step(batch) for _ in range(count)]


def test_the_models_own_loss_or_one_by_name_and_the_file(tmp_path: Path) -> None:
    session = Session(with_loss())
    trainer = session.trainer("adam", lr=1e-2)
    assert sorted(trainer.factors) == ["b", "beta", "bias", "dense", "gamma", "w"]
    batch = {"x": X, "labels": LABELS}
    own = losses_of(trainer, batch)
    assert own[-1] < 0.7 * own[0]
    bare = with_loss()
    bare.graph.node.pop()
    bare.graph.input.pop()
    bare.graph.output[0].name = "g"
    named = Session(bare).trainer("adam", lr=1e-2, loss="softmax_cross_entropy")
    other = losses_of(named, {"x": X, "label": LABELS})
    np.testing.assert_allclose(own, other, rtol=2e-4)
    small = losses_of(Session(with_loss()).trainer("adam", lr=1e-2, precision="bfloat16"), batch)
    assert small != own
    np.testing.assert_allclose(small, own, rtol=0.05, atol=0.02)
    chosen = losses_of(Session(with_loss()).trainer("adam", lr=1e-2, loss="loss"), batch)
    assert chosen == own
    # the session computes with what was learned, and so does the file
    before = session.run(batch)["loss"]
    trainer.save(tmp_path / "trained.onnx")
    session.export(tmp_path / "exported.onnx")
    for name in ("trained.onnx", "exported.onnx"):
        onnx.checker.check_model(onnx.load(tmp_path / name))
        again = clgraft.load(tmp_path / name)
        np.testing.assert_allclose(again.run(batch)["loss"], before, rtol=1e-4)
        for key, array in trainer.parameters.items():
            np.testing.assert_array_equal(again.parameters[key], array, err_msg=key)
    trainer.step(batch)
    assert session.run(batch)["loss"] != before
    with pytest.raises(ClgraftError, match="with whole numbers"):
        trainer.step({"x": X, "labels": LABELS + 2**60})


def test_batch_norms_compute_as_the_trainer_or_the_model_says() -> None:
    before = {name: array.copy() for name, array in Session(with_loss()).parameters.items()}
    batch = {"x": X, "labels": LABELS}
    session = Session(with_loss())
    training = session.trainer(lr=0.0)
    loss = training.step(batch)
    moved = training.parameters
    conv = {"x": X, "labels": LABELS}
    c = Session(with_loss()).values("c", conv).astype(np.float64)
    np.testing.assert_allclose(moved["mean"], 0.9 * before["mean"] + 0.1 * c.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(moved["var"], 0.9 * before["var"] + 0.1 * c.var((0, 2, 3)), rtol=1e-4, atol=1e-6)
    for mode in (False, None):  # the model states inference
        still = Session(with_loss()).trainer(lr=0.0, training_mode=mode)
        assert still.step(batch) == pytest.approx(float(Session(with_loss()).run(batch)["loss"]), rel=1e-5)
        assert abs(still.step(batch) - loss) > 1e-3
        np.testing.assert_array_equal(still.parameters["mean"], before["mean"])
    stated = with_loss()
    norm = next(each for each in stated.graph.node if each.op_type == "BatchNormalization")
    norm.attribute.append(onnx.helper.make_attribute("training_mode", 1))
    norm.output.extend(["mean_out", "var_out"])
    own = Session(stated).trainer(lr=0.0, training_mode=None)
    assert own.step(batch) == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(own.parameters["var"], moved["var"], rtol=1e-6)
    assert Session(stated).trainer(lr=0.0, training_mode=False).step(batch) != pytest.approx(loss, rel=1e-3)


def test_dropout_what_is_trained_and_what_is_refused() -> None:
    weights = {
        **{"table": random(9, 6), "w": random(6, 4), "scale": random(4), "power": np.full((), 2, F32)},
        **{"shift": random(4), "ratio": np.array(0.5, F32), "factor": np.full((), 0.5, F32), "sub": random(4)},
    }
    nodes = [
        node("Gather", "table ids", "e"),
        node("Identity", "w", "shared"),
        node("MatMul", "e shared", "m"),
        node("Unsqueeze", "scale axes", "wide"),
        node("Mul", "m wide", "s"),
        node("Sub", "s sub", "t"),
        node("Dropout", "t ratio", "d mask"),
        node("Pow", "d power", "p"),
        node("Mul", "p factor", "q"),
        node("Add", "q shift", "y"),
        node("ReduceMean", "y", "loss", keepdims=0),
    ]
    weights["axes"] = np.array([0], I64)
    proto = model(nodes, {"ids": (I64, ["n"])}, {"loss": (F32, [])}, weights)
    ids = np.arange(8, dtype=I64) % 5
    runs = []
    for seed in (1, 1, 2):
        trainer = Session(proto).trainer("sgd", lr=0.0, seed=seed)
        runs.append(losses_of(trainer, {"ids": ids}, 3))
    assert runs[0] == runs[1] != runs[2] and len(set(runs[0])) == 3
    trainer = Session(proto).trainer("sgd", lr=0.1, frozen=["shift"], trained=["factor"], training_mode=False)
    assert sorted(trainer.factors) == ["factor", "scale", "table", "w"]
    trainer.step({"ids": ids})
    after = trainer.parameters
    for name in ("table", "w", "scale", "factor"):
        assert np.abs(after[name] - weights[name]).max() > 1e-6, name
    np.testing.assert_array_equal(after["shift"], weights["shift"])
    np.testing.assert_array_equal(after["table"][5:], weights["table"][5:])
    with pytest.raises(OnnxError, match=r"index 12\S* in Gather"):
        trainer.step({"ids": ids + 8})
    with pytest.raises(OnnxError, match=r"trained of 'facto'.*factor"):
        Session(proto).trainer(trained=["facto"])
    with pytest.raises(ClgraftError, match="without a loss"):
        Session(small_net()).trainer().step({"x": X})


def torch_net() -> Any:
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.GELU(), nn.Dropout(0.0), nn.Flatten(), nn.LayerNorm(512)),
        nn.Linear(512, 5),
    )


OPTIMIZERS = {
    "sgd": ("SGD", {"momentum": 0.9, "weight_decay": 1e-3, "nesterov": True}),
    "adamw": ("AdamW", {"weight_decay": 1e-2}),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_exported_model_learns_as_in_pytorch(kind: str, tmp_path: Path) -> None:
    """Losses of the same steps, and the net in inference after them."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    net = torch_net()
    mode = torch.onnx.TrainingMode.TRAINING
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"do_constant_folding": False, "dynamo": False, "input_names": ["x"], "output_names": ["y"]}
        axes = {"x": {0: "n"}, "y": {0: "n"}}
        torch.onnx.export(
            net,
            torch.from_numpy(X),
            tmp_path / "net.onnx",
            training=mode,
            dynamic_axes=axes,
            opset_version=17,
            **options,
        )
    name, given = OPTIMIZERS[kind]
    net.train()
    optimizer = getattr(torch.optim, name)(net.parameters(), lr=1e-2, **given)
    trainer = clgraft.load(tmp_path / "net.onnx").trainer(kind, lr=1e-2, loss="softmax_cross_entropy", **given)
    assert set(trainer.factors) == {key for key, _ in net.named_parameters()}
    x, labels = torch.from_numpy(X), torch.from_numpy(LABELS)
    ours, theirs = [], []
    for _ in range(8):
        ours.append(trainer.step({"x": X, "label": LABELS}))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        theirs.append(float(loss.detach()))
    np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=1e-4)
    assert theirs[-1] < 0.5 * theirs[0]
    for key, value in net.named_parameters():
        np.testing.assert_allclose(trainer.parameters[key], value.detach(), rtol=2e-2, atol=2e-3, err_msg=key)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_models_of_other_types_are_refused(dtype: str) -> None:
    kind = np.dtype(dtype) if dtype != "bfloat16" else pytest.importorskip("ml_dtypes").bfloat16
    inputs, outputs = {"x": (kind, ["n", 4])}, {"y": (kind, ["n", 3])}
    proto = model([node("MatMul", "x w", "y")], inputs, outputs, {"w": random(4, 3).astype(kind)})
    with pytest.raises(OnnxError, match=f"got weight 'w' of {dtype}, expected weights of float32 to train"):
        Session(proto).trainer("sgd", loss="softmax_cross_entropy")
