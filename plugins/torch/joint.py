"""Changes to the graph of forward and backward together, before PyTorch splits it."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from clgraft.core.nn.dropout import keep_and_scale
from clgraft.plugins.torch.operators import adaptive_max_pool_backward, max_pool_backward

aten = torch.ops.aten

FORWARD = {  # gradients that read indices -> what computes these, and ours that reads the maxima
    aten.max_pool2d_with_indices_backward.default: (aten.max_pool2d_with_indices.default, max_pool_backward),
    aten.adaptive_max_pool2d_backward.default: (aten.adaptive_max_pool2d.default, adaptive_max_pool_backward),
    aten.adaptive_max_pool3d_backward.default: (aten.adaptive_max_pool3d.default, adaptive_max_pool_backward),
}

BLANKS = {aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default}


def make_blanks_alone(joint: GraphModule) -> None:
    """Make memory without contents without the tensor whose form it has: no call has to wait for that tensor.

    Where sizes change from call to call, their tensor has to say them.
    """
    graph = joint.graph
    for node in list(graph.nodes):
        if node.target not in BLANKS:
            continue
        value = node.meta["val"]
        if not all(isinstance(number, int) for number in (*value.shape, *value.stride())):
            continue
        form = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
        with graph.inserting_before(node):
            blank = graph.call_function(aten.empty_strided.default, (list(value.shape), list(value.stride())), form)
        blank.meta = dict(node.meta)
        node.replace_all_uses_with(blank)
        graph.erase_node(node)
    joint.recompile()


def read_maxima(joint: GraphModule) -> None:
    """Let gradients of max pooling read the maxima instead of their indices, which then are never computed."""
    for node in list(joint.graph.nodes):
        if node.target not in FORWARD:
            continue
        forward, backward = FORWARD[node.target]
        dy, x, *words, indices = node.args
        pool = indices.args[0] if isinstance(indices, Node) and indices.target is operator.getitem else None
        if not isinstance(pool, Node) or pool.target is not forward:
            continue
        y = _first(joint, pool)
        if backward is max_pool_backward:
            kernel, stride, *more = words
            words = [kernel, stride or kernel, *more]
        else:
            words = [pool.args[1]]
        with joint.graph.inserting_before(node):
            changed = joint.graph.call_function(backward, (dy, x, y, *words))
        changed.meta = dict(node.meta)
        node.replace_all_uses_with(changed)
        joint.graph.erase_node(node)
        if not indices.users:
            joint.graph.erase_node(indices)
    joint.recompile()


def _first(joint: GraphModule, pool: Node) -> Node:
    """Return the node that takes the maxima out of a pooling's results."""
    for user in pool.users:
        if user.target is operator.getitem and user.args[1] == 0:
            return user
    with joint.graph.inserting_after(pool):
        y: Node = joint.graph.call_function(operator.getitem, (pool, 0))
    y.meta = {**pool.meta, "val": pool.meta["val"][0]} if "val" in pool.meta else {}
    return y


def read_clipped(joint: GraphModule) -> None:
    """Let gradients of clipping, such as relu6, read its result, which the next layer reads as well.

    The result is at a bound where the input is at it or beyond. What is clipped need not be kept then, and can be
    computed in one piece with what is in front of it.
    """
    for node in list(joint.graph.nodes):
        if node.target is not aten.hardtanh_backward.default:
            continue
        _, x, *bounds = node.args
        copies = []  # what is clipped in place is copied for the gradient first
        before = x
        while before.target is aten.clone.default:
            copies.append(before)
            before = before.args[0]
        for user in before.users:
            if user.target is aten.hardtanh.default and [*user.args[1:], *(-1, 1)[len(user.args) - 1 :]] == bounds:
                node.replace_input_with(x, user)
                for copy in copies:
                    if not copy.users:
                        joint.graph.erase_node(copy)
                break
    joint.recompile()


def multiply_by_masks(joint: GraphModule) -> None:
    """Let dropout be a product with a drawn mask, in the values' dtype: only the drawing stays PyTorch's.

    The same numbers are drawn as by eager PyTorch.
    """
    for node in list(joint.graph.nodes):
        if node.target is aten.native_dropout.default and node.args[2] is not False:
            _multiply(joint, node)
    joint.recompile()


def _multiply(joint: GraphModule, node: Node) -> None:
    x, share, _ = node.args
    value = node.meta["val"][0]
    parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    backward = list(parts[1].users) if 1 in parts else []
    known = all(isinstance(size, int) for size in value.shape) and len(parts) == len(node.users)
    if not known or any(user.target is not aten.native_dropout_backward.default for user in backward):
        return
    graph, meta = joint.graph, {**node.meta, "val": value}
    keep, scale = keep_and_scale(share)

    def call(target: object, *arguments: object, **keywords: object) -> Node:
        made: Node = graph.call_function(target, arguments, keywords)
        made.meta = dict(meta)
        return made

    with graph.inserting_before(node):
        form = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
        blank = call(aten.empty.memory_format, list(value.shape), **form)
        mask = call(aten.mul.Tensor, call(aten.bernoulli.p, blank, keep), scale)
        if 0 in parts:
            parts[0].replace_all_uses_with(call(aten.mul.Tensor, x, mask))
    for user in backward:
        with graph.inserting_before(user):
            user.replace_all_uses_with(call(aten.mul.Tensor, user.args[0], mask))
        graph.erase_node(user)
    for part in parts.values():
        graph.erase_node(part)
    graph.erase_node(node)
