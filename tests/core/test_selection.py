"""The one rule for choices of a model's operators: what they match, and what is said where they match nothing."""

from __future__ import annotations

import pytest

from clgraft.core.errors import SelectionError, hint, nearest
from clgraft.core.selection import Selection

MODEL = [("data", "Input"), ("conv1", "Convolution"), ("relu1", "ReLU"), ("conv2", "Convolution"), ("a[1]", "ReLU")]


def chosen(**given) -> list[str]:
    selection = Selection(**given)
    return [name for name, kind in MODEL if not selection.refusal(name, kind)]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ["data", "conv1", "relu1", "conv2", "a[1]"]),
        ({"types": ["convolution"]}, ["conv1", "conv2"]),
        ({"types": "relu", "exclude": ["relu?"]}, ["a[1]"]),
        ({"names": ["conv*"], "exclude": "conv2"}, ["conv1"]),
        ({"names": ["a[1]"]}, ["a[1]"]),
        ({"exclude": ["CONVOLUTION", "Input"]}, ["relu1", "a[1]"]),
        ({"select": ["Re*", "conv2"]}, ["relu1", "conv2", "a[1]"]),
        ({"select": iter(["data"])}, ["data"]),
        ({"names": []}, []),
    ],
)
def test_a_choice(given, names):
    assert chosen(**given) == names


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"names": ["conv9"]}, "[swap] got names conv9, expected names of the model's layers, such as conv2, conv1"),
        ({"names": ["cnv*"]}, "such as conv"),
        ({"types": "Convolutoin"}, "[swap] got types Convolutoin, expected types of the model's layers, such as Conv"),
        ({"types": ["Zzz", "Yyy"]}, "got types Zzz, Yyy, expected types of the model's layers, such as Input, Conv"),
        ({"select": "relu9"}, "got select relu9, expected names or types of the model's layers, such as ReLU, relu1"),
        ({"types": ["ReLU"], "names": ["conv1"]}, "got types ReLU and names conv1, expected some layer that fits"),
    ],
)
def test_a_choice_that_matches_nothing_is_an_error_with_the_nearest(given, words):
    with pytest.raises(SelectionError) as caught:
        Selection(**given, noun="layer").notes(MODEL)
    assert words in str(caught.value)


def test_a_part_that_matches_nothing_is_a_note():
    selection = Selection(names=["conv1", "conv9", "zzz"], exclude=["relu9"])
    assert selection.notes(MODEL) == [
        "no operator matches conv9; nearest: conv2, conv1",
        "no operator matches zzz",
        "no operator matches relu9; nearest: ReLU, relu1",
    ]
    assert Selection(types=["ReLU"], exclude=["*1*"]).notes(MODEL) == []  # by intent
    assert Selection(names=["conv1"]).notes(MODEL) == Selection(names=[]).notes(MODEL) == Selection().notes(MODEL) == []


def test_a_model_that_was_swapped_before_says_so():
    with pytest.raises(SelectionError, match=r"already swapped: 3 layers are clgraft's\)"):
        Selection(types=["Convolution"], noun="layer").notes([("data", "Input")], swapped=3)
    with pytest.raises(SelectionError, match=r"of which there are none \(already swapped: 1 operator is clgraft's\)"):
        Selection(types=["Convolution"]).notes([], swapped=1)


def test_long_lists_are_cut():
    many = [(f"block{i}", "ReLU") for i in range(40)]
    with pytest.raises(SelectionError, match=r"such as block0, block1, block2, block3, block4, \.\.\.$"):
        Selection(names=["xyz"]).notes(many)


def test_nearest_words():
    known = ["Convolution", "Deconvolution", "Pooling"]
    assert nearest("convolutoin", known)[0] == "Convolution"
    assert nearest("POOLING", known) == ["Pooling"]
    assert nearest("xyz", known) == [] and nearest("Pool", known, likeness=0.9) == []
    assert hint("Poolin", known) == "; nearest: Pooling" and hint("xyz", known) == ""
