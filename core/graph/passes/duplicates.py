"""Computes equal problems of equal values once, and no value that is a copy of another one."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import replace

from clgraft.core.graph.structure import SKIPPED, Node, Some
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.operators.pointwise.expression import Term
from clgraft.core.problem import Problem

OUTPUT = re.compile(r"\by(\d+)\b")


def drop_duplicates(graph: Some) -> Some:
    """Return the graph without problems that an earlier node has computed from the same values.

    Results of pointwise problems that equal an input or an earlier result, as the gradients of a sum do, are not
    computed either. A problem that reads or changes a state is never taken for another one's duplicate.
    """
    states = {state.name for state in graph.states}
    first: dict[tuple[Problem, tuple[str, ...], tuple], list[int]] = {}
    renamed: dict[str, str] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        pairs = list(zip(node.problem.arguments(), node.arguments))
        node = replace(node, arguments=tuple(renamed.get(n, n) if a.role != "out" else n for a, n in pairs))
        copies = _copies(node, states, graph.outputs)
        if copies:
            renamed.update({node.named(y): node.named(x) for y, x in copies.items()})
            fewer = _without(node, copies)
            if fewer is None:
                continue
            node = fewer
            pairs = list(zip(node.problem.arguments(), node.arguments))
        written = [i for i, (a, _) in enumerate(pairs) if a.role == "out"]
        blocked = states & set(node.reads) or any(node.arguments[i] in graph.outputs for i in written)
        key = (node.problem, node.reads, node.scalars)
        places = [] if blocked else first.setdefault(key, [])
        if not places:
            places.append(len(kept))
            kept.append(node)
            continue
        twin = kept[places[0]]
        names = list(twin.arguments)
        for i in written:
            if names[i] == SKIPPED:
                names[i] = node.arguments[i]
            elif node.arguments[i] != SKIPPED:
                renamed[node.arguments[i]] = names[i]
        kept[places[0]] = replace(twin, arguments=tuple(names))
    return graph.with_nodes(kept)


def _copies(node: Node, states: Collection[str], kept: Collection[str]) -> dict[str, str]:
    """Return the results of a pointwise problem that are copies, and the argument of which each is one.

    Results whose names are `kept` have to be computed.
    """
    problem = node.problem
    if not isinstance(problem, PointwiseProblem) or problem.alpha or problem.beta:
        return {}
    statements = problem.assignments.statements
    terms = {statement.target: statement.value for statement in statements}
    if len(terms) != len(statements):  # one changes
        return {}

    def meaning(term: Term) -> Term:
        while term.operator == "name" and term.word in terms:
            term = terms[term.word]
        return term

    found: dict[str, str] = {}
    computed: dict[tuple[Term, str], str] = {}
    read = {name for term in terms.values() for name in term.reads}
    for k in range(problem.assignments.outputs):
        y = f"y{k}"
        term, own = meaning(terms[y]), problem.type_of(y)
        if problem.reductions[k] is not None or node.named(y) == SKIPPED:
            continue
        source = term.word if term.operator == "name" and term.word.startswith("x") else ""
        whole = source[1:].isdigit() and math.prod(problem.inputs[int(source[1:])]) == math.prod(problem.common_shape)
        if whole and problem.type_of(source) == own and node.named(source) not in states:
            original = source
        else:
            original = computed.setdefault((term, own), y)
        if original != y and node.named(y) not in kept and y not in read:
            found[y] = original
    return found


def _without(node: Node, copies: Collection[str]) -> Node | None:
    """Return a pointwise problem without some results; None if there are no others."""
    problem = node.problem
    assert isinstance(problem, PointwiseProblem)
    left = [k for k in range(problem.assignments.outputs) if f"y{k}" not in copies]
    if not left:
        return None
    names = {f"y{k}": f"y{i}" for i, k in enumerate(left)}
    texts = [text.strip() for text in problem.expression.split(";")]
    kept = (text for text in texts if text and text.split("=")[0].strip() not in copies)
    fewer = replace(
        problem,
        expression=OUTPUT.sub(lambda y: names[y[0]], "; ".join(kept)) + ";",
        reductions=tuple(problem.reductions[k] for k in left),
        float32_arguments=tuple(names.get(name, name) for name in problem.float32_arguments if name not in copies),
    )
    count = len(problem.inputs)
    return replace(node, problem=fewer, arguments=(*node.arguments[:count], *(node.arguments[count + k] for k in left)))
