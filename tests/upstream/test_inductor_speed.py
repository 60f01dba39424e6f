"""Functions of PyTorch that do the same in less time: the same, and whether they are needed."""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import pickle
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import sympy
import torch
from torch._inductor import ir, virtualized
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.virtualized import V
from torch.fx import graph as fx_graph
from torch.fx import graph_module
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _config_module
from torch.utils import _pytree as pytree

from torch_spyre import _inductor
from torch_spyre._inductor.state import compiling
from torch_spyre.upstream import inductor_speed


@pytest.fixture(scope="module", autouse=True)
def applied() -> None:
    _inductor.register()


def stock(function: Any) -> Any:
    return inspect.unwrap(function)


def calls(function: Callable[[], Any]) -> int:
    """How many functions of Python are called by a function, with itself."""
    found = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal found
        found += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


# ---- Settings -----------------------------------------------------------------------------------


SETTINGS = """
import sys
from typing import Any
from torch.utils._config_module import Config, install_config_module

plain: int = 3
text: str = "x"
nothing: Any = None
many: list[int] = [1, 2]
forced: bool = Config(default=False, env_name_force="SHORTCUT_FORCED")
given: bool = Config(default=False, env_name_default="SHORTCUT_GIVEN")
knob: bool = Config(justknob="shortcut/none:knob", default=True)
other: int = Config(alias="torch._dynamo.config.recompile_limit")
old: int = Config(default=1, deprecated=True, deprecation_message="use plain")
install_config_module(sys.modules[__name__])
"""


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A module with settings of every kind."""
    (tmp_path / "shortcut_settings.py").write_text(SETTINGS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SHORTCUT_FORCED", "1")
    monkeypatch.setenv("SHORTCUT_GIVEN", "1")
    yield importlib.import_module("shortcut_settings")
    del sys.modules["shortcut_settings"]


NAMES = ["plain", "text", "nothing", "many", "forced", "given", "knob", "other", "old"]


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_is_what_pytorch_finds(settings: Any, name: str) -> None:
    look_up = stock(type(settings).__getattr__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert getattr(settings, name) == look_up(settings, name)
        if name not in ("forced", "other"):
            setattr(settings, name, 17)
            assert getattr(settings, name) == look_up(settings, name) == 17
            delattr(settings, name)
            with pytest.raises(AttributeError, match=f"{name} does not exist"):
                getattr(settings, name)


def test_a_list_that_is_changed_in_place_leaves_the_default_alone(settings: Any) -> None:
    settings.many.append(3)
    assert settings.many == [1, 2, 3]
    assert settings._config["many"].default == [1, 2]


def test_an_old_setting_warns_once(settings: Any) -> None:
    with pytest.warns(FutureWarning, match="use plain"):
        assert settings.old == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settings.old == 1


def test_a_setting_that_is_patched_has_its_value_back(settings: Any) -> None:
    with settings.patch(plain=4):
        assert settings.plain == 4
    assert settings.plain == 3
    assert not hasattr(settings, "unknown")


def test_a_setting_is_looked_up_with_one_call() -> None:
    config = torch._inductor.config
    assert calls(lambda: config.debug) == 2
    look_up = stock(_config_module.ConfigModule.__getattr__)
    assert calls(lambda: look_up(config, "debug")) > 2, "the shortcut is not needed any more"


# ---- Handlers -----------------------------------------------------------------------------------


def test_handlers_are_set_and_set_back() -> None:
    before = V.get_ops_handler()
    with V.set_ops_handler("outer"):
        with V.set_ops_handler("inner"):
            assert V.get_ops_handler() == "inner"
        assert V.get_ops_handler() == "outer"
        with pytest.raises(ZeroDivisionError), V.set_ops_handler("inner"):
            raise ZeroDivisionError
        assert V.get_ops_handler() == "outer"
    assert type(V.get_ops_handler()) is type(before)
    left = V.set_debug_handler("at once")  # set without `with`
    assert V.debug == "at once"
    with left:
        pass
    assert V.debug != "at once"


def test_a_handler_is_set_without_making_a_function() -> None:
    variable: Any = virtualized.Virtualized("shortcut", lambda: None)

    def set_with(function: Any) -> int:
        def run() -> None:
            with function(variable, 1):
                pass

        return calls(run)

    theirs = set_with(stock(virtualized.Virtualized._set_handler))
    assert set_with(inductor_speed.Virtualized._set_handler) < theirs, "it is not needed any more"


# ---- Graphs -------------------------------------------------------------------------------------


def lazy(function: Callable[..., Any] = lambda x: torch.relu(x) + 1) -> _LazyGraphModule:
    traced = torch.fx.symbolic_trace(function)
    return _LazyGraphModule(traced, traced.graph)


def test_a_graph_that_is_printed_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    forward_from_src = graph_module._forward_from_src

    def noted(src: str, *args: Any) -> Any:
        compiled.append(src)
        return forward_from_src(src, *args)

    gm = lazy()
    expected = lazy().code
    monkeypatch.setattr(graph_module, "_forward_from_src", noted)
    lazy().code  # noqa: B018
    assert compiled, "PyTorch does it itself now"
    compiled.clear()
    with compiling():
        assert gm.code == expected
        assert gm.code == expected
        pickled = pickle.dumps(gm)
    assert not compiled
    x = torch.randn(3)
    assert torch.equal(gm(x), torch.relu(x) + 1)
    assert torch.equal(pickle.loads(pickled)(x), torch.relu(x) + 1)
    assert graph_module._forward_from_src is noted


def test_a_graph_that_was_printed_is_compiled_when_it_has_to_be() -> None:
    x = torch.randn(3)
    with compiling():
        gm, other, traced = lazy(), lazy(), lazy()
        for module in (gm, other, traced):
            assert "relu" in module.code
    assert torch.equal(copy.deepcopy(other)(x), torch.relu(x) + 1)
    assert torch.equal(other.forward(x), torch.relu(x) + 1)
    _LazyGraphModule.force_recompile(traced)
    assert list(inspect.signature(traced.forward).parameters) == ["x"]
    (relu,) = gm.graph.find_nodes(op="call_function", target=torch.relu)
    relu.target = torch.sigmoid
    gm.recompile()
    assert "sigmoid" in gm.code
    assert torch.equal(gm(x), torch.sigmoid(x) + 1)


# ---- Arguments of nodes -------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Any
    second: Any


def test_leaves_of_arguments_are_those_of_any_tree() -> None:
    symbol = torch.fx.Graph().placeholder("x")
    trees = [
        ((1, [2, 3.0], {"a": None, "b": (symbol, "x")}), {}),
        (Pair(1, [2]), OrderedDict(a=[1], b=2), [[], ()]),
        immutable_list([1, immutable_dict({"a": 2})]),
        torch.Size([1, 2]),
        slice(1, 2),
    ]
    for tree in trees:
        assert list(fx_graph.pytree.tree_iter(tree)) == list(pytree.tree_iter(tree))
    assert list(fx_graph.pytree.tree_iter(trees[0], lambda x: True)) == [trees[0]]
    assert fx_graph.pytree.tree_map is pytree.tree_map


def test_arguments_of_a_node_are_gone_over_with_few_calls() -> None:
    tree = ((1, 2, [3, 4]), {"a": 5})
    ours = calls(lambda: list(fx_graph.pytree.tree_iter(tree)))
    assert ours < calls(lambda: list(pytree.tree_iter(tree))), "it is not needed any more"


# ---- Sizes and indices --------------------------------------------------------------------------

SIZES = [
    0,
    1,
    2,
    sympy.Integer(1),
    sympy.Integer(2),
    sympy.Symbol("s0", integer=True, positive=True),
]


def test_sizes_that_are_numbers_are_compared_as_numbers() -> None:
    sizes = SizeVarAllocator(ShapeEnv())
    for name in ("statically_known_equals", "is_size_one_or_false", "simplify"):
        function = getattr(SizeVarAllocator, name)
        pairs = itertools.product(SIZES, SIZES) if name == "statically_known_equals" else zip(SIZES)
        for values in pairs:
            if name == "is_size_one_or_false" and not isinstance(values[0], (int, sympy.Integer)):
                continue  # needs a hint
            ours = function(sizes, *values)
            assert ours == stock(function)(sizes, *values), values
    assert sizes.check_equals(sympy.Integer(3), 3) == 3
    assert sizes.check_equals_and_simplify(sympy.Integer(3), 3) == 3
    with pytest.raises(AssertionError):
        sizes.check_equals(sympy.Integer(3), sympy.Integer(4))
    one = calls(lambda: sizes.is_size_one_or_false(sympy.Integer(2)))
    theirs = stock(SizeVarAllocator.is_size_one_or_false)
    assert one < calls(lambda: theirs(sizes, sympy.Integer(2))), "it is not needed any more"


def test_an_index_is_added_up_once() -> None:
    i, j = sympy.symbols("i j", integer=True)
    for size, stride, offset in (
        ((4, 5), (5, 1), sympy.S.Zero),
        ((4, 1), (7, 3), i),
        ((4, 5), (1, 4), 3),
    ):
        ours, theirs = (
            f(size, stride, offset) for f in (ir._fixed_indexer, stock(ir._fixed_indexer))
        )
        for index in ((i, j), (j, i), (0, j), (2, 3), (i + 1, 2 * j)):
            assert ours(index) == ours(list(index)) == theirs(index)
        with pytest.raises(AssertionError):
            ours((i,))
    indexer, theirs = ir._fixed_indexer((4, 5), (5, 1)), stock(ir._fixed_indexer)((4, 5), (5, 1))
    assert calls(lambda: indexer((i, j))) < calls(lambda: theirs((i, j))), (
        "it is not needed any more"
    )


def test_the_type_of_an_operation_is_found_once() -> None:
    from torch._inductor import lowering

    def tensor(dtype: torch.dtype, *size: int) -> Any:
        return mock.Mock(
            spec=ir.IRNode, **{"get_dtype.return_value": dtype, "get_size.return_value": size}
        )

    theirs = stock(lowering.get_promoted_dtype)
    dtypes = (torch.float16, torch.float32, torch.int64, torch.bool)
    given = [tensor(d, *s) for d in dtypes for s in ((), (2,), (2, 3))] + [
        1,
        1.0,
        True,
        sympy.Integer(2),
    ]
    kinds = lowering.ELEMENTWISE_TYPE_PROMOTION_KIND
    of_kinds = (kinds.DEFAULT, kinds.INT_TO_FLOAT, kinds.ALWAYS_BOOL)
    default = torch.get_default_dtype()
    try:
        for other in (torch.float32, torch.float64):  # the default may change
            torch.set_default_dtype(other)
            for kind, a, b in itertools.product(of_kinds, given, given):
                expected = theirs(a, b, type_promotion_kind=kind)
                for _ in range(2):
                    assert lowering.get_promoted_dtype(a, b, type_promotion_kind=kind) is expected
    finally:
        torch.set_default_dtype(default)
    a, b = tensor(torch.float16, 2), tensor(torch.int64, 3)
    with mock.patch.object(torch, "zeros", side_effect=AssertionError("made")):
        lowering.get_promoted_dtype(a, b, type_promotion_kind=kinds.DEFAULT)
        with pytest.raises(AssertionError, match="made"):  # else it is not needed any more
            theirs(a, b, type_promotion_kind=kinds.DEFAULT)
