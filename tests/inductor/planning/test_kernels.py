"""Which nodes become which kernel, and which buffers live inside of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.utils import fresh_inductor_cache

from torch_spyre._inductor import config
from torch_spyre._inductor.inspect import debug_dir
from torch_spyre._inductor.planning.plan import GraphPlan


def plan_of(function: Callable[..., Any], *args: torch.Tensor) -> GraphPlan:
    torch._dynamo.reset()
    with debug_dir.listen() as record, torch.no_grad(), fresh_inductor_cache():
        torch.compile(function)(*args)
    (plan,) = record.plans
    return plan


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float16).to("spyre")


def names(plan: GraphPlan) -> list[list[str]]:
    return [[op.opfunc for op in k.operations] for k in plan.kernels]


def test_a_graph_without_host_steps_is_one_kernel() -> None:
    plan = plan_of(lambda x: torch.relu(torch.exp(x)) + 1, half(64, 128))
    assert names(plan) == [["exp", "relufwd", "add"]]
    (kernel,) = plan.kernels
    assert all(k is kernel for k in plan.kernel_of.values()) and not plan.fallbacks


def test_a_host_step_cuts_a_kernel_in_two_and_what_goes_across_is_allocated() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x)
        return torch.relu(torch.cummax(y, 0).values) + y

    plan = plan_of(function, half(64, 128))
    assert names(plan) == [["exp"], ["relufwd", "add"]]
    (across,) = [op.output.buffer for op in plan.kernels[0].operations]
    assert across.name not in plan.internal and across in plan.kernels[1].arguments


def test_without_fusion_each_node_is_a_kernel() -> None:
    with config.patch(enable_fusion=False):
        plan = plan_of(lambda x: torch.exp(x).sum(1) + 1, half(64, 128))
    assert [len(kernel.nodes) for kernel in plan.kernels] == [1] * len(plan.kernels)
    assert not plan.internal and len(plan.kernels) > 1


def test_what_one_kernel_alone_uses_lives_inside_of_it() -> None:
    plan = plan_of(lambda x: torch.softmax(x, -1), half(64, 128))
    (kernel,) = plan.kernels
    results = {op.output.buffer.name for op in kernel.operations if op is not kernel.operations[-1]}
    assert results and results & set(plan.buffers) <= plan.internal
    assert {b.name for b in kernel.arguments}.isdisjoint(plan.internal)


def test_a_piece_of_a_cat_is_written_where_it_lies() -> None:
    plan = plan_of(
        lambda x, y: torch.cat([torch.exp(x), torch.abs(y)]), half(64, 128), half(32, 128)
    )
    (kernel,) = plan.kernels
    (target,) = {op.output.buffer for op in kernel.operations}
    assert target.size == (96, 128)
    offsets = sorted(int(op.output.index.subs(dict.fromkeys(op.ranges, 0)))
                     for op in kernel.operations)  # fmt: skip
    assert offsets == [0, 64 * 128]


def test_nothing_is_computed_for_tensors_without_elements() -> None:
    plan = plan_of(lambda x: (torch.exp(x[:0]), torch.abs(x)), half(64, 128))
    assert names(plan) == [["abs"]]
