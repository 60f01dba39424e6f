"""Names that clients of the public stack import, each used as its client does."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._inductor import decomposition

from torch_spyre._inductor import config, passes, spyre_hint
from torch_spyre._inductor.errors import Unsupported
from torch_spyre._inductor.propagate_named_dims import declare_tensor_dim

spyre = torch.ops.spyre


def half(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float16)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.cpu().float(), expected.float(), rtol=0.01, atol=0.01)


# ---- What a worker of vLLM does ------------------------------------------------------------------


def test_a_worker_writes_the_decompositions_of_products_into_the_table_of_inductor():
    from torch_spyre._inductor.decompositions import spyre_decompositions

    before = dict(decomposition.decompositions)
    for op, function in spyre_decompositions.items():
        assert isinstance(op, torch._ops.OpOverload) and callable(function)
        if "addm" in op.name():
            decomposition.decompositions[op] = function
            assert before[op] is function, "what is written is what was there"
    assert torch.ops.aten.addmm.default in spyre_decompositions
    b, x, y = half(8), half(4, 6), half(6, 8)
    for device in ("cpu", "spyre"):
        torch._dynamo.reset()
        close(torch.compile(torch.addmm)(*(t.to(device) for t in (b, x, y))), torch.addmm(b, x, y))


def test_decompositions_leave_other_devices_to_what_was_there_before():
    from torch_spyre._inductor.decompositions import spyre_decompositions

    op = torch.ops.aten.sign.default  # Inductor has none
    assert spyre_decompositions[op](half(3)) is NotImplemented
    assert spyre_decompositions[op](half(3).to("spyre")).device.type == "spyre"


def test_a_worker_loads_the_device_itself(script):
    told = script(
        """
        import torch
        assert not hasattr(torch, "spyre")
        import torch_spyre
        torch_spyre._autoload()
        torch_spyre._autoload()
        print(torch.ones(3, device="spyre").sum().item())
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert told == "3.0"


# ---- What the adapters import --------------------------------------------------------------------


def test_constants_of_the_compiler():
    from torch_spyre._inductor.constants import FP8_E4M3_MAX, FP8_E4M3FN_MAX, IDENTITY_OP
    from torch_spyre.opfuncs import OPFUNCS

    assert FP8_E4M3_MAX == FP8_E4M3FN_MAX == torch.finfo(torch.float8_e4m3fn).max
    assert IDENTITY_OP in OPFUNCS


def test_a_model_is_loaded_by_the_documented_function():
    from torch_spyre.model_utils import load_model_to_spyre

    model = torch.nn.Linear(64, 128)
    expected = model(torch.ones(2, 64))
    loaded = load_model_to_spyre(model, torch.float16)
    assert loaded.weight.dtype is torch.float16 and loaded.weight.device.type == "spyre"
    assert loaded.weight.device_tensor_layout().device_size == [2, 64, 64], "sticks of outputs"
    close(loaded(torch.ones(2, 64).half().to("spyre")), expected)


def test_settings_are_patched_by_their_documented_names():
    x = half(64, 128)
    with config.patch(sencores=2, lx_planning=False, hbm_planning=False, bundle_symbolic_args=True):
        torch._dynamo.reset()
        close(torch.compile(lambda x: torch.softmax(x, -1))(x.to("spyre")), torch.softmax(x, -1))


# ---- float8 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["compiled", "eager"])
@pytest.mark.parametrize("scale", [torch.tensor(0.25), torch.rand(1, 128) + 0.5])
def test_float8_with_scales_stays_on_the_card(how, scale):
    x = half(32, 128) * 50
    scale = scale.half()

    def there_and_back(x, scale):
        eight = spyre.quantize_fp8_with_scale(x, scale)
        return eight, spyre.dequantize_fp8_with_scale(eight, scale)

    torch._dynamo.reset()
    on_card = [t.to("spyre") for t in (x, scale)]
    run = torch.compile(there_and_back) if how == "compiled" else there_and_back
    place = torch.spyre.get_eager()
    torch.spyre.set_eager("card")
    torch.spyre.reset_fallback_counts()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            eight, back = run(*on_card)
    finally:
        torch.spyre.set_eager(place)
    assert torch.spyre.fallback_counts() == {}
    assert eight.dtype is torch.float8_e4m3fn and back.dtype is torch.float16
    wanted = (x.float() / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    torch.testing.assert_close(eight.cpu().float(), wanted, rtol=0.13, atol=0.01)  # one step of it
    close(back, eight.cpu().float() * scale.float())


def test_the_operator_that_a_program_asks_for_first_is_the_one_that_the_compiler_knows(script):
    """Asking loads the compiler, which asks for it, too."""
    for name in ("quantize_fp8_with_scale", "full"):  # decomposed, lowered
        told = script(
            f"""
            import torch
            first = torch.ops.spyre.{name}
            from torch_spyre._inductor.fx.decompositions import spyre_decompositions
            from torch_spyre._inductor.lowering.registry import is_native
            assert first is torch.ops.spyre.{name}
            print(first.default in spyre_decompositions or is_native(first.default))
            """
        )
        assert told == "True", name


# ---- Operators that make tensors out of nothing --------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(2.5, torch.float16), (3, None), (True, None), (2.5, None), (7, torch.float32)],
)
def test_full_is_torch_full(value, dtype):
    expected = torch.full((3, 70), value, dtype=dtype)
    device = torch.device("spyre:0")
    eager = spyre.full([3, 70], value, device, dtype)
    torch._dynamo.reset()
    compiled = torch.compile(lambda: spyre.full([3, 70], value, device, dtype=dtype))()
    for result in (eager, compiled):
        assert result.device.type == "spyre" and result.dtype == expected.dtype
        assert torch.equal(result.cpu(), expected)
    assert torch.equal(spyre.full([3, 70], value, torch.device("cpu"), dtype), expected)


def test_ones_scalar_is_a_number_on_the_card():
    device = torch.device("spyre:0")
    x = half(4, 70)
    torch._dynamo.reset()
    for run in (lambda f: f, torch.compile):
        one = run(lambda: spyre.ones_scalar(device, torch.float16))()
        assert one.shape == () and one.dtype is torch.float16 and one.item() == 1
        close(run(lambda x: x + spyre.ones_scalar(device))(x.to("spyre")), x + 1)
    assert spyre.ones_scalar(device).dtype is torch.get_default_dtype()


# ---- Fallbacks -----------------------------------------------------------------------------------


def test_several_operators_are_passed_to_the_host_at_once(script):
    script(
        """
        import torch
        from torch_spyre.ops.fallbacks import register_fallback_default

        library = torch.library.Library("mylib", "DEF")
        library.define("twice(Tensor x) -> Tensor")
        library.define("add_(Tensor(a!) x, Tensor y) -> ()")
        library.impl("twice", lambda x: x * 2, "CPU")
        library.impl("add_", lambda x, y: print(x.add_(y).device), "CPU")
        register_fallback_default([torch.ops.mylib.twice, torch.ops.mylib.add_.default,
                                   torch.ops.aten.cumsum.default])
        register_fallback_default(torch.ops.aten.sort.default)
        x = torch.arange(5.0).to("spyre")
        assert torch.ops.mylib.twice(x).tolist() == [0, 2, 4, 6, 8]
        library.impl("add_", lambda x, y: None, "Meta")
        torch.ops.mylib.add_(x, x)
        assert x.tolist() == [0, 2, 4, 6, 8]
        counts = torch.spyre.fallback_counts()
        assert counts["mylib::twice"] == counts["mylib::add_"] == 1, counts
        assert torch.cumsum(x, 0).tolist() == [0, 2, 6, 12, 20]
        try:
            register_fallback_default([torch.ops.aten.add])
        except ValueError as problem:
            assert "several overloads" in str(problem)
        else:
            raise AssertionError
        """
    )


# ---- Passes --------------------------------------------------------------------------------------

POSITIONS = {
    "CustomPreGradPasses": "pre_grad",
    "CustomPrePasses": "early",
    "CustomPrePass": "early",
    "CustomPostPasses": "late",
    "CustomPostPass": "late",
    "CustomPreSchedulingPasses": "pre_scheduling",
    "CustomPreFusionPasses": "pre_fusion",
    "CustomPostFusionPasses": "post_fusion",
}


def test_each_position_has_its_documented_name():
    for name, position in POSITIONS.items():
        assert getattr(passes, name).passes is passes.ADDED[position]
    assert set(POSITIONS.values()) == set(passes.ADDED)


def test_a_pass_of_the_pre_grad_graph_sees_torch_functions_and_changes_them():
    seen = []

    def use_relu(graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.target is torch.tanh:
                node.target = torch.relu
            seen.append(node.target)

    x = half(4, 64)
    passes.CustomPreGradPasses.passes.append(use_relu)
    try:
        torch._dynamo.reset()
        result = torch.compile(lambda x: torch.tanh(x) + 1)(x.to("spyre"))
    finally:
        passes.remove_pass("pre_grad", use_relu)
    assert torch.relu in seen
    close(result, torch.relu(x) + 1)
    torch._dynamo.reset()
    close(torch.compile(lambda x: torch.tanh(x) + 1)(x.to("spyre")), torch.tanh(x) + 1)


def test_an_object_of_a_position_runs_its_passes_in_order():
    added = [lambda nodes: [*nodes, 1], lambda nodes: None, lambda nodes: [*nodes, 2]]
    passes.CustomPreFusionPasses.passes += added
    try:
        assert passes.CustomPreFusionPasses()([0]) == [0, 1, 2]
    finally:
        del passes.CustomPreFusionPasses.passes[:]


def test_the_context_of_the_compiler_changes_nothing_for_other_devices():
    from torch_spyre._inductor.patches import enable_spyre_context

    x = half(4, 64)
    with enable_spyre_context([x]):
        for device in ("cpu", "spyre"):
            torch._dynamo.reset()
            close(torch.compile(torch.tanh)(x.to(device)), torch.tanh(x))


# ---- Hints ---------------------------------------------------------------------------------------


def compiled_in(hint, x, w):
    def f(x, w):
        with hint():
            return torch.relu(x @ w)

    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        return torch.compile(f)(x.to("spyre"), w.to("spyre"))


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (lambda: spyre_hint(work_div={"M": 4}), r"work_div={'M': 4}"),
        (lambda: spyre_hint(num_tiles_per_dim={"K": 2}), r"num_tiles_per_dim={'K': 2}"),
        (lambda: spyre_hint(tiles={"K": 2}), r"num_tiles_per_dim={'K': 2}"),
    ],
)
def test_a_hint_in_a_graph_without_names_is_a_warning(hint, said):
    x, w = half(64, 128) / 8, half(128, 64)
    with pytest.warns(UserWarning, match=f"the hint {said} does not count: no dimension of"):
        close(compiled_in(hint, x, w), torch.relu(x.float() @ w.float()))


def test_names_that_are_declared_but_given_to_no_tensor_are_none():
    declare_tensor_dim("M", 64)
    x, w = half(64, 128) / 8, half(128, 64)
    with pytest.warns(UserWarning, match="does not count"):
        compiled_in(lambda: spyre_hint(work_div={"M": 4}), x, w)


# ---- Layouts -------------------------------------------------------------------------------------


def test_a_layout_from_size_type_and_order():
    from torch_spyre._C import ElementArrangement, SpyreTensorLayout

    layout = SpyreTensorLayout((5, 100, 150), torch.float16, [1, 0, 2])
    assert layout.device_size == [5, 3, 100, 64] and layout.stride_map == [15000, 64, 150, 1]
    named = SpyreTensorLayout(host_size=[5, 100, 150], dtype=torch.float16, dim_order=[1, 0, 2])
    assert named == layout
    assert layout == SpyreTensorLayout([5, 100, 150], [15000, 150, 1], torch.float16, [1, 0, 2])
    assert SpyreTensorLayout([512, 256], torch.float16, [0, 1, -1]).device_size == [256, 1, 512, 64]
    assert SpyreTensorLayout([], torch.float16, []) == SpyreTensorLayout([], torch.float16)
    other = SpyreTensorLayout([4, 64], torch.float16, [0, 1], ElementArrangement.QFP8CH)
    assert other.element_arrangement == ElementArrangement.QFP8CH
    x = half(5, 100, 150)
    there = x.to("spyre", device_layout=layout)
    assert there.device_tensor_layout() == layout and torch.equal(there.cpu(), x.to("spyre").cpu())
    with pytest.raises(ValueError, match="Incompatible host_size and dim_order"):
        SpyreTensorLayout([5, 100], torch.float16, [0, 0])


def test_errors_of_hints_stay_errors():
    with pytest.raises(ValueError, match="names no dimension"):
        spyre_hint(num_tiles_per_dim={})
    with pytest.raises(KeyError, match="no dimension is named 'nobody'"):
        spyre_hint(named_dims=["nobody"])
    assert issubclass(Unsupported, Exception)
