"""The compiler's own loops: large intermediates stay in scratchpads, tile by tile."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.utils import fresh_inductor_cache
from torch.nn import functional

import torch_spyre
from torch_spyre._inductor import config
from torch_spyre._inductor.inspect import debug_dir
from torch_spyre._inductor.opspec.op_spec import LoopSpec
from torch_spyre._inductor.planning import divide_and_place, planner
from torch_spyre._inductor.planning.division.documented_rules import widest_span
from torch_spyre._inductor.planning.op_cost import slices_of
from torch_spyre._inductor.planning.tiling import automatic
from torch_spyre._inductor.planning.tiling.loops import stick_bytes
from torch_spyre.hardware import CARD

# A card with a tenth of its scratchpads, 6.7 MB in all: what is large there is small here.
SMALL = {"cores": 32, "lx_reserved": 0.9}
TOKENS = 1024


def half(*shape):
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float16).to("spyre")


def explained(function, *args, own_tiling=True, **settings):
    torch._dynamo.reset()
    with config.patch(own_tiling=own_tiling, **{**SMALL, **settings}), torch.no_grad():
        return torch_spyre.explain(function, *args)


def both(function, *args, **settings):
    """With and without loops: less time, the same bits."""
    loops = explained(function, *args, **settings)
    plain = explained(function, *args, own_tiling=False, **settings)
    assert torch.equal(loops.result.cpu(), plain.result.cpu())
    assert loops.device_time_us < plain.device_time_us and loops.hbm_bytes < plain.hbm_bytes
    assert not any(op.loops for op in plain.ops) and any(op.loops for op in loops.ops)
    return loops, plain


def test_no_loops_are_tried_where_each_tensor_moves_once_without_them(monkeypatch):
    def build(*_):
        raise AssertionError("a trial")

    monkeypatch.setattr(automatic, "build", build)
    q, k, v = (half(1, 4, 2 * TOKENS, 64) for _ in range(3))
    told = explained(functional.scaled_dot_product_attention, q, k, v, lx_reserved=0.2)
    assert told.hbm_bytes <= 1.02 * told.compulsory_bytes
    with pytest.raises(Exception, match="a trial"):  # here they move more often
        explained(functional.scaled_dot_product_attention, q, k, v)


@pytest.mark.parametrize("heads", [4, 5])
def test_attention_scores_never_touch_device_memory(heads):
    q, k, v = (half(1, heads, TOKENS, 64) for _ in range(3))
    loops, plain = both(functional.scaled_dot_product_attention, q, k, v)
    products = [op for op in loops.ops if op.opfunc == "batchmatmul"]
    assert all(op.loops for op in products)
    wide = [op for op in loops.ops if op.shape[-1:] == (TOKENS,) and op.opfunc != "ReStickifyOpHBM"]
    assert len(wide) >= 4
    assert all(o.place == "lx" for op in wide for o in op.operands if o.writes)
    assert loops.hbm_bytes <= 1.6 * loops.compulsory_bytes < plain.hbm_bytes / 5


def test_an_mlp_streams_its_rows():
    x, up, down = half(4096, 256), half(256, 1024) * 0.1, half(1024, 256) * 0.1

    def mlp(x, up, down):
        return torch.nn.functional.gelu(x @ up) @ down

    loops, _ = both(mlp, x, up, down)
    assert {op.loops[:1] != () for op in loops.ops} == {True}
    between = [o for op in loops.ops for o in op.operands if op.opfunc == "gelufwd"]
    assert all(o.place == "lx" for o in between)


def test_rows_that_do_not_divide_have_a_smaller_last_tile():
    x = half(8191, 512)  # a prime number of rows

    def f(x):
        return torch.softmax(torch.exp(x * 0.5), -1)

    loops, _ = both(f, x)
    assert {len(op.loops) for op in loops.ops} == {1}
    assert {op.loops for op in loops.ops} >= {(1,)} and len({op.loops for op in loops.ops}) == 2
    rows = {op.loops: op.shape[0] for op in loops.ops if op.opfunc == "exp"}
    assert sum(count * rows[(count,)] for (count,) in rows) == 8191


def test_columns_that_end_inside_of_a_stick_are_cut_too():
    x = half(1024, 8136)  # 128 sticks, the last one of 8 columns

    def f(x):
        return torch.softmax(torch.exp(x * 0.5), 0)

    loops, _ = both(f, x)
    columns = {op.loops: op.shape[1] for op in loops.ops if op.opfunc == "exp"}
    assert len(columns) == 2 and sum(count * columns[(count,)] for (count,) in columns) == 8136


def test_an_argument_that_is_read_again_soon_is_read_once():
    norm = torch.nn.LayerNorm(512).half().to("spyre")
    loops, plain = both(norm, half(16384, 512))
    assert loops.hbm_bytes < 1.01 * loops.compulsory_bytes < plain.hbm_bytes / 1.4


def test_cores_can_address_the_tensors_that_tiles_are_cut_from(monkeypatch):
    """A tile of rows goes through all columns of sticks, which lie as far apart as they do in the
    whole tensor."""
    x, limit = half(8192, 512), 4 << 20
    for module in (automatic, planner, divide_and_place):
        monkeypatch.setattr(module, "CARD", CARD._replace(span_bytes=limit))
    torch._dynamo.reset()
    with config.patch(**SMALL), debug_dir.listen() as record, fresh_inductor_cache():
        result = torch.compile(lambda x: torch.softmax(x, -1))(x)
    torch.testing.assert_close(
        result.cpu().float(), torch.softmax(x.cpu().float(), -1), atol=1e-3, rtol=2e-2
    )
    found = [s for p in record.plans for k in p.kernels for s in k.specs]
    (loop,) = [s for s in found if isinstance(s, LoopSpec)]
    read = loop.body[0]
    assert stick_bytes(read.args[0]) == 8192 * 512 * 2 > limit, "the whole tensor"
    spans = [widest_span(spec, slices_of(spec), SMALL["cores"]) for spec in loop.body]
    assert max(spans) <= limit


def test_what_fits_into_scratchpads_is_left_alone_and_so_are_hints_and_switches():
    x = half(8192, 512)

    def f(x):
        return torch.softmax(x, -1)

    assert not any(op.loops for op in explained(f, x, cores=32, lx_reserved=0.2).ops)
    assert not any(op.loops for op in explained(f, x, own_tiling=False).ops)
    assert not any(op.loops for op in explained(f, x, lx_planning=False).ops)


def test_loops_of_the_compiler_are_clean_and_counted_on_the_card():
    q, k, v = (half(1, 4, TOKENS, 64) for _ in range(3))
    found = []
    for unroll, fused in ((True, True), (False, True), (False, False)):
        torch._dynamo.reset()
        settings = {**SMALL, "unroll_loops": unroll, "backend_fusion": fused, "validate": True}
        with config.patch(**settings), torch.no_grad():
            compiled = torch.compile(functional.scaled_dot_product_attention)
            with torch.spyre.sanitizer():
                found.append(compiled(q, k, v).cpu())
            torch.spyre.reset_counters()
            compiled(q, k, v)
            torch.spyre.synchronize()
            counters = torch.spyre.counters()
        plan = explained(functional.scaled_dot_product_attention, q, k, v)
        assert counters["hbm_read_bytes"] + counters["hbm_write_bytes"] == plan.hbm_bytes
    assert all(torch.equal(other, found[0]) for other in found[1:])
