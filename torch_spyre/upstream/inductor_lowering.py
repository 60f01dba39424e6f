"""Changes to what Inductor's own functions do; the only place where we make any.

Each says which hook is missing (torch 2.13). None does anything for graphs without spyre tensors.
Those that only save time, and give what PyTorch's functions give, are in `inductor_speed.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.codecache import get_hash, get_path, sha256_hash
from torch._inductor.graph import GraphLowering
from torch._inductor.pattern_matcher import (
    CallFunction,
    FailedMatch,
    KeywordArg,
    MultiOutputPattern,
    PatternMatcherPass,
    ReplacementPatternEntry,
)
from torch._inductor.scheduler import Scheduler
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts

from torch_spyre._inductor import passes, pipeline
from torch_spyre._inductor.capture import graph_cache
from torch_spyre._inductor.fx import reinplace as spyre_reinplace
from torch_spyre._inductor.host.scheduler import LoopsOnDemand
from torch_spyre._inductor.lowering import (
    driver,
    registry,
    repeated_layers,
)
from torch_spyre._inductor.operations import body_memo
from torch_spyre._inductor.state import is_compiling
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.logs import get_logger
from torch_spyre.on_card import is_spyre
from torch_spyre.upstream import fake_tensor_updates, fast_run_node, pattern_filter, trace_memo

_log = get_logger("spyre.inductor.lowering")


def apply() -> None:
    """Install all of them."""
    _realise_every_operation()
    _ask_no_questions()
    _leave_out_equal_layers()
    _plan_before_host_code()
    _run_fallbacks_on_folded_constants()
    _do_not_try_to_fuse()
    _do_not_look_for_ancestors()
    _make_loops_on_demand()
    _find_dependencies_once()
    _leave_scaled_softmax_alone()
    _leave_products_alone()
    _keep_known_values()
    _look_at_the_input_first()
    _leave_out_impossible_patterns()
    _replay_what_was_traced()
    _do_not_describe_keys()
    _print_nodes_where_they_are()
    _know_the_types_of_the_card()
    _compare_numbers_as_numbers()
    _read_sound_pickles()
    _write_damaged_host_code_again()
    _update_in_place_where_it_is_safe()


# -- GraphLowering.call_function: no hook after the lowering of a node -----------------------------
# One OpFunc per node means that nothing may be inlined into its consumers, and a node that the card
# cannot do must become a fallback while its ATen operation is still known. See lowering/driver.py.


def _realise_every_operation() -> None:
    stock = GraphLowering.call_function

    @functools.wraps(stock)
    def call_function(self: GraphLowering, target: Any, args: Any, kwargs: Any) -> Any:
        if not registry.has_spyre(args, kwargs) or not isinstance(target, torch._ops.OpOverload):
            return stock(self, target, args, kwargs)
        return driver.lower(self, functools.partial(stock, self), target, args, kwargs)

    GraphLowering.call_function = call_function


# -- GraphLowering.run_node: asks of every node what is known for most -----------------------------
# See fast_run_node.py.
# Fails when it can go: test_plain_nodes_are_lowered_without_questions.


def _ask_no_questions() -> None:
    stock = GraphLowering.run_node

    def lowered(self: GraphLowering, n: torch.fx.Node) -> object:
        if fast_run_node.is_plain(self, n):
            return fast_run_node.lower(self, n)
        return stock(self, n)

    @functools.wraps(stock)
    def run_node(self: GraphLowering, n: torch.fx.Node) -> object:
        found = repeated_layers.of(self)
        if found is None:
            return lowered(self, n)
        return found.lower(self, n, functools.partial(lowered, self))

    GraphLowering.run_node = run_node


# -- GraphLowering.run, compile_to_module: no hook around the lowering of a graph ------------------
# Layers that are equal are lowered once. Where the plan shows that they cannot be planned so, the
# graph is lowered again; Inductor goes on with the object that it has. See repeated_layers.py.
# Fails when it can go: test_equal_layers_are_lowered_once.


def _leave_out_equal_layers() -> None:
    stock_run, stock_compile = GraphLowering.run, GraphLowering.compile_to_module

    @functools.wraps(stock_run)
    def run(self: GraphLowering, *args: Any) -> Any:
        if is_compiling():
            repeated_layers.begin(self)
        return stock_run(self, *args)

    @functools.wraps(stock_compile)
    def compile_to_module(self: GraphLowering) -> Any:
        try:
            return stock_compile(self)
        except repeated_layers.Differs as difference:
            _log.info("all layers are lowered: %s", difference)
        whole = GraphLowering(
            self.module,
            example_inputs=self.example_inputs,
            shape_env=self._shape_env,
            graph_id=self.graph_id,
            is_inference=self.is_inference,
            is_backward=self.is_backward,
            inputs_to_check=self.inputs_to_check,
            get_decomp_fn=self.get_decomp_fn,
        )
        repeated_layers.leave_nothing_out(whole)
        whole.freeze_runtime_asserts()
        with V.set_graph_handler(whole):
            whole.run(*(self.example_inputs or ()))
            module = stock_compile(whole)
        vars(self).clear()
        vars(self).update(vars(whole))
        return module

    GraphLowering.run = run
    GraphLowering.compile_to_module = compile_to_module


# -- GraphLowering._update_scheduler: no hook between the scheduler and host code ------------------
# The pipeline's stages on LoopLevelIR run before Inductor makes its scheduler, those that plan the
# graph after it.
# Fails when it can go: test_the_plan_is_made_before_host_code_is_written.


def _plan_before_host_code() -> None:
    stock = GraphLowering._update_scheduler

    @functools.wraps(stock)
    def _update_scheduler(self: GraphLowering) -> None:
        if not is_compiling():
            stock(self)
            return
        pipeline.prepare(self)
        stock(self)
        pipeline.plan(self)

    GraphLowering._update_scheduler = _update_scheduler


# -- ExternKernel.process_kernel: fakes are made of arguments, but not of folded constants ---------
# A fallback runs its operation on fakes; constants from fold_constants are real tensors.


def _run_fallbacks_on_folded_constants() -> None:
    stock = ir.ExternKernel.process_kernel.__func__

    @functools.wraps(stock)
    def process_kernel(cls: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            return stock(cls, kernel, *args, **kwargs)
        mode = V.fake_mode
        before = mode.allow_non_fake_inputs, mode.static_shapes
        # Their sizes are numbers, not symbols that other sizes would then be made of.
        mode.allow_non_fake_inputs, mode.static_shapes = True, True
        try:
            return stock(cls, kernel, *args, **kwargs)
        finally:
            mode.allow_non_fake_inputs, mode.static_shapes = before

    ir.ExternKernel.process_kernel = classmethod(process_kernel)


# -- Scheduler.unfusable_node: a device cannot say that it never fuses -----------------------------
# The scheduler asks the device last, when it has compared the loops of two nodes: a tenth of the
# time that a graph takes, for an answer that is always no.
# Fails when it can go: test_no_pair_of_nodes_is_compared_for_fusion.


def _do_not_try_to_fuse() -> None:
    stock = Scheduler.unfusable_node

    @functools.wraps(stock)
    def unfusable_node(self: Scheduler, node: Any) -> bool:
        return is_spyre(node.get_device()) or stock(self, node)

    Scheduler.unfusable_node = unfusable_node


# -- Scheduler.compute_ancestors, compute_input_distances: asked for by fusion alone ---------------
# All that each node depends on, which takes the square of their number.
# Fails when it can go: test_nobody_looks_for_ancestors_where_nothing_is_fused.


def _do_not_look_for_ancestors() -> None:
    stock_ancestors, stock_distances = (
        Scheduler.compute_ancestors,
        Scheduler.compute_input_distances,
    )

    @functools.wraps(stock_ancestors)
    def compute_ancestors(self: Scheduler) -> None:
        if not _nothing_is_fused(self):
            stock_ancestors(self)
            return
        for order, node in enumerate(self.nodes):
            node.min_order = node.max_order = order

    @functools.wraps(stock_distances)
    def compute_input_distances(self: Scheduler) -> None:
        if not _nothing_is_fused(self):
            stock_distances(self)

    Scheduler.compute_ancestors = compute_ancestors
    Scheduler.compute_input_distances = compute_input_distances


def _nothing_is_fused(scheduler: Scheduler) -> bool:
    """Whether all nodes are the card's, and nobody else looks at what they depend on."""
    return (
        all(is_spyre(node.get_device()) for node in scheduler.nodes)
        and not inductor_config.reorder_for_compute_comm_overlap
        and not passes.look_at_scheduler_nodes()
    )


# -- Scheduler.create_scheduler_node: no hook for the nodes of a device ----------------------------
# Loops that nobody fuses need not be made; see LoopsOnDemand.
# Fails when it can go: test_no_loops_are_made_that_nobody_looks_at.


def _make_loops_on_demand() -> None:
    stock = Scheduler.create_scheduler_node

    @functools.wraps(stock)
    def create_scheduler_node(self: Scheduler, node: Any) -> Any:
        if isinstance(node, ir.ComputedBuffer) and is_spyre(node.get_device()):
            sizes = (*node.get_size(), *node.get_reduction_size())
            return stock(self, node) if 0 in sizes else LoopsOnDemand(self, node)
        return stock(self, node)

    Scheduler.create_scheduler_node = create_scheduler_node


# -- ComputedBuffer.get_read_writes: runs the body of a node each time -----------------------------
# For the layout of a node, and for the scheduler. See body_memo.py.
# Fails when it can go: test_dependencies_are_found_once_for_one_layout.


def _find_dependencies_once() -> None:
    stock = ir.ComputedBuffer.get_read_writes

    @functools.wraps(stock)
    def get_read_writes(self: ir.ComputedBuffer) -> Any:
        if not is_compiling() or not is_spyre(self.get_device()):
            return stock(self)
        return body_memo.run_once("dependencies", self, stock, _names_read)

    ir.ComputedBuffer.get_read_writes = get_read_writes


def _names_read(found: Any) -> list[str]:
    return [dep.name for dep in found.reads]


# -- lowering.unsupported_input_tensor: asks a tensor for what its device answers ------------------
# Whether a tensor is complex, sparse or without data is asked of every operand of every node, by
# each pass of patterns and while lowering. A fake tensor takes long to answer; on the card all with
# plain types are what Inductor can compute with.
# Fails when it can go: test_fakes_of_the_card_are_not_asked_for_their_kind.


def _know_the_types_of_the_card() -> None:
    from torch._inductor import lowering as stock_lowering

    stock = stock_lowering.unsupported_input_tensor

    @functools.wraps(stock)
    def unsupported_input_tensor(t: torch.Tensor, node: Any = None) -> bool:
        device = getattr(t, "fake_device", None)
        if (
            device is not None
            and device.type == DEVICE_NAME
            and t.dtype in fast_run_node.PLAIN_TYPES
        ):
            return False
        return stock(t, node)

    stock_lowering.unsupported_input_tensor = unsupported_input_tensor


# -- fx_passes.joint_graph: no option for a single pattern -----------------------------------------
# softmax(x * number) becomes a dozen operations that take the largest value before the scaling.
# Loops that are fused hide that; here each is an operation of the card.
# Fails when it can go: test_a_scaled_softmax_is_six_operations.


def _leave_scaled_softmax_alone() -> None:
    from torch._inductor.fx_passes import joint_graph

    _not_for_spyre(joint_graph.pass_patterns, joint_graph._other_is_broadcasted_in_dim)


def _not_for_spyre(passes: list[Any], check: Callable[[Any], Any]) -> None:
    """Patterns with a given check do not apply to tensors on the card."""
    elsewhere = functools.partial(_elsewhere, check)
    for known in passes:
        for entry in (e for entries in known.patterns.values() for e in entries):
            if entry.extra_check is check:
                entry.extra_check = elsewhere


# -- fx_passes.post_grad: no option for a single pattern -------------------------------------------
# mm + bias becomes addmm, which our decomposition takes apart again: the graph as it was, for a
# trace of each product.
# Fails when it can go: test_products_are_not_traced_again.


def _leave_products_alone() -> None:
    from torch._inductor.fx_passes import post_grad

    _not_for_spyre(post_grad.pass_patterns, post_grad.is_valid_addmm_fusion)


# -- fx_passes.post_grad, compile_fx: no hook where values of nodes are computed again -------------
# See fake_tensor_updates.py.
# Fails when it can go: test_values_that_are_known_are_not_computed_again.


def _keep_known_values() -> None:
    from torch._inductor import compile_fx
    from torch._inductor.fx_passes import post_grad

    post_grad.FakeTensorUpdater = fake_tensor_updates.updater
    stock = compile_fx.fake_tensor_prop

    @functools.wraps(stock)
    def fake_tensor_prop(gm: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        mode = torch._guards.detect_fake_mode(example_inputs)
        if mode is not None:
            with V.set_fake_mode(mode), enable_python_dispatcher():
                if fake_tensor_updates.bring_up_to_date(gm):
                    return mode
        return stock(gm, example_inputs, *args, **kwargs)

    compile_fx.fake_tensor_prop = fake_tensor_prop


# -- fx_passes.joint_graph: a hundred patterns are tried on each view ------------------------------
# All forms of attention that Inductor knows end with a view of a product. A look at what is viewed
# tells the same as the attempts to match them, and of products nothing is padded on the card.
# Fails when it can go: test_a_view_of_no_product_is_not_compared_with_attention.


def _look_at_the_input_first() -> None:
    from torch._inductor.fx_passes import joint_graph

    stock = joint_graph.lazy_init

    @functools.wraps(stock)
    def lazy_init(*args: Any, **kwargs: Any) -> Any:
        result = stock(*args, **kwargs)
        _look_once(joint_graph.patterns)
        return result

    joint_graph.lazy_init = lazy_init


@functools.cache
def _look_once(patterns: Any) -> None:
    """When all patterns are there."""
    for entry in (e for entries in patterns.patterns.values() for e in entries):
        several = isinstance(entry.pattern, MultiOutputPattern)
        last = entry.pattern.outputs[0] if several else entry.pattern
        inputs = last.args if type(last) is CallFunction else ()
        if inputs and type(inputs[0]) is CallFunction:
            _look_first(entry.pattern, inputs[0])
        elif _pads_a_product(entry):
            entry.extra_check = functools.partial(_elsewhere, entry.extra_check)


def _look_first(pattern: Any, wanted: CallFunction) -> None:
    if "match" in vars(pattern):
        return  # entries share patterns
    stock, functions = pattern.match, frozenset(wanted.fns)

    def match(node: torch.fx.Node) -> Any:
        given = node.args[0] if node.args else None
        if isinstance(given, torch.fx.Node) and given.target not in functions:
            return FailedMatch("function_mismatch: node={}, pattern={}", given, wanted)
        return stock(node)

    pattern.match = match


def _pads_a_product(entry: Any) -> bool:
    """Whether a pattern is a product of anything, which is replaced by one of padded operands."""
    pattern = entry.pattern
    return (
        isinstance(entry, ReplacementPatternEntry)
        and type(pattern) is CallFunction
        and not _PRODUCTS.isdisjoint(pattern.fns)
        and all(isinstance(a, KeywordArg) for a in pattern.args)
    )


_PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default}


def _elsewhere(stock: Callable[[Any], Any], match: Any) -> Any:
    """The check of a pattern that is not for tensors on the card."""
    return match.output_node().meta["val"].device.type != DEVICE_NAME and stock(match)


# -- PatternMatcherPass.apply: does not look at what a pattern needs ------------------------------
# See patterns.py.
# Fails when it can go: test_patterns_that_cannot_match_are_not_tried.


def _leave_out_impossible_patterns() -> None:
    stock = PatternMatcherPass.apply

    @functools.wraps(stock)
    def apply(self: PatternMatcherPass, gm: Any) -> int:
        return pattern_filter.apply(stock, self, gm) if is_compiling() else stock(self, gm)

    PatternMatcherPass.apply = apply


# -- AOTAutograd: no hook where it runs the nodes of a graph ---------------------------------------
# Layers that are equal are traced twice each; see trace_memo.py.
# Fails when it can go: test_an_operation_is_decomposed_once_for_all_layers.


def _replay_what_was_traced() -> None:
    stock = PropagateUnbackedSymInts.run_node

    @functools.wraps(stock)
    def run_node(self: Any, n: torch.fx.Node) -> Any:
        trace_memo.begin(n)
        return stock(self, n)

    PropagateUnbackedSymInts.run_node = run_node  # type: ignore[method-assign]
    for kind in ("call_function", "call_method"):
        running = functools.partialmethod(_run, getattr(PropagateUnbackedSymInts, kind), kind)
        setattr(PropagateUnbackedSymInts, kind, running)


def _run(self: Any, stock: Any, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
    return trace_memo.run(self, stock, kind, target, args, kwargs)


# -- FxGraphCachePickler.debug_lines: made for each graph, read by nobody but logs -----------------
# The graph is printed and pickled once more for it.
# Fails when it can go: test_a_key_is_not_described_unless_somebody_reads_it.


def _do_not_describe_keys() -> None:
    from torch._inductor import codecache
    from torch._logging._internal import trace_log

    stock = codecache.FxGraphCachePickler.debug_lines

    @functools.wraps(stock)
    def debug_lines(self: Any, inp: Any) -> list[str]:
        is_read = codecache.log.isEnabledFor(logging.DEBUG) or trace_log.handlers
        return [] if is_compiling() and not is_read else stock(self, inp)

    codecache.FxGraphCachePickler.debug_lines = debug_lines


# -- Node.__setattr__: enters a node anew in the tables of its graph, whatever is set --------------
# To print a graph, for keys of caches and logs, sets how nodes are printed, twice each.
# Fails when it can go: test_a_graph_is_printed_without_entering_its_nodes_anew.


def _print_nodes_where_they_are() -> None:
    stock = torch.fx.Node.__setattr__

    @functools.wraps(stock)
    def set_attribute(self: torch.fx.Node, name: str, value: Any) -> None:
        if name == "_repr_fn" and is_compiling():
            object.__setattr__(self, name, value)
        else:
            stock(self, name, value)

    torch.fx.Node.__setattr__ = set_attribute  # type: ignore[method-assign]


# -- ir.is_contiguous_strides_for_shape: sizes that are numbers are compared as symbols ------------
# Asked for each view.
# Fails when it can go: test_strides_that_are_numbers_are_compared_as_numbers.


def _compare_numbers_as_numbers() -> None:
    stock = ir.is_contiguous_strides_for_shape

    @functools.wraps(stock)
    def is_contiguous(stride: Sequence[Any], shape: Sequence[Any]) -> bool:
        known = all(isinstance(n, (int, sympy.Integer)) for n in (*stride, *shape))
        if not known or not is_compiling():
            return stock(stride, shape)
        expected = largest = 1
        for size, step in zip(reversed(shape), reversed(stride), strict=False):
            if size == 1:
                continue
            if step not in (expected, largest):
                return False
            largest *= max(1, size)
            expected *= size
        return True

    ir.is_contiguous_strides_for_shape = is_contiguous


# -- GuardedCache: pickles are loaded whoever wrote them and whatever became of them ---------------
# Their name is a hash of what was written. See graph_cache.py.
# Fails when it can go: test_damaged_files_of_every_cache_are_made_again.


def _read_sound_pickles() -> None:
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
    from torch._inductor.codecache import FxGraphCache, GuardedCache

    stock = GuardedCache.iterate_over_candidates.__func__

    @functools.wraps(stock)
    def iterate_over_candidates(cls: Any, local: bool, remote_cache: Any, key: str) -> Any:
        if local and is_compiling():
            graph_cache.leave_sound(cls._get_tmp_dir_for_key(key))
        return stock(cls, local, remote_cache, key)

    GuardedCache.iterate_over_candidates = classmethod(iterate_over_candidates)
    for kind in (FxGraphCache, AOTAutogradCache):
        kind._write_to_local_cache = staticmethod(
            functools.partial(_write_closed, kind, kind._write_to_local_cache)
        )


def _write_closed(kind: Any, stock: Any, key: str, content: bytes) -> None:
    stock(key, content)
    if is_compiling():
        folder = kind._get_tmp_dir_for_key(key)
        graph_cache.close(f"{folder}/{sha256_hash(content)}")


# -- codecache.write, CompiledFxGraph.write_to_disk: a file of host code that is there is taken ----
# Whatever is in it is run.
# Fails when it can go: test_damaged_files_of_every_cache_are_made_again.


def _write_damaged_host_code_again() -> None:
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.output_code import CompiledFxGraph

    stock_write = PyCodeCache.write.__func__
    stock_write_to_disk = CompiledFxGraph.write_to_disk

    @functools.wraps(stock_write)
    def write(cls: Any, source_code: str, extra: str = "") -> tuple[str, str]:
        if is_compiling():
            key = get_hash(source_code.strip(), extra, "code")
            graph_cache.leave_equal(get_path(key, "py")[2], source_code)
        return stock_write(cls, source_code, extra)

    @functools.wraps(stock_write_to_disk)
    def write_to_disk(self: Any) -> str:
        if is_compiling():
            graph_cache.leave_equal(get_path(self.cache_key, "py")[2], self.source_code)
        return stock_write_to_disk(self)

    PyCodeCache.write = classmethod(write)
    CompiledFxGraph.write_to_disk = write_to_disk


# -- fx_passes.reinplace: updates in place that change the result, see reinplace.py --------------
# Fails when it can go: test_inductor_for_the_cpu_still_updates_in_place_what_is_overwritten.


def _update_in_place_where_it_is_safe() -> None:
    from torch._inductor.fx_passes import reinplace

    for update in (torch.ops.aten.index_put.default, torch.ops.aten._unsafe_index_put.default,
                   reinplace._generalized_scatter):  # fmt: skip
        known = reinplace.inplaceable_ops[update]
        reinplace.inplaceable_ops[update] = dataclasses.replace(
            known, extra_check=spyre_reinplace.also(known.extra_check)
        )
