"""All that we change in PyTorch, and why. `install.py` reads this table; so does the page
docs/contributing/upstream.md, which is made of it.

kind    semantics: graphs or tensors of the card would be wrong, or a documented name missing
        cache: files that others have damaged or written would be run
        time: the same result sooner; SPYRE_UPSTREAM=semantics leaves these out
scope   spyre: for tensors and graphs of other devices PyTorch's own function is called
        new name: nothing that was there is replaced
        process: holds for all devices
gain    how much more compiling takes without the row, cold / warm, for MiniLM 8x128 and for a
        decoder of 24 layers: in calls of functions, which are the same in each run; of rows
        without targets in processor time (Intel Xeon with AVX-512)
test    fails when PyTorch has what is missing, and the row can go: for all but those of time a
        program that must fail without the row
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Patch:
    """One change: which attributes, by what, and why."""

    name: str
    targets: tuple[str, ...]
    """`module:Class.attribute`. None: what is done around a call of PyTorch's compiler."""
    by: str
    """The function of this folder that makes the replacements, or does it."""
    kind: Literal["semantics", "cache", "time"]
    scope: Literal["spyre", "new name", "process"]
    why: str
    test: str = "test_pytorch_still_needs_a_row"
    gain: str = ""
    torch: str = "2.13"
    """The version for which it was written and tried."""


WITH_THE_DEVICE = [
    Patch(
        "tensor-layout", ("torch:Tensor.device_tensor_layout",), "tensor_api.device_tensor_layout",
        "semantics", "new name",
        "A documented method. There is no way to give tensors of a device methods of their own.",
    ),
    Patch(
        "tensor-to",
        ("torch:Tensor.to", "torch.nn.parameter:UninitializedTensorMixin._allowed_methods"),
        "tensor_api.tensor_to", "semantics", "spyre",
        "Documented: to(device_layout=...). Further arguments cannot be registered.",
    ),
    Patch(
        "empty", ("torch:empty", "torch.utils._device:_device_constructors"), "tensor_api.empty",
        "semantics", "spyre",
        "Documented: torch.empty(device_layout=...). Further arguments cannot be registered.",
    ),
    Patch(
        "print", ("torch._tensor_str:_tensor_str",), "tensor_api.print_from_host",
        "semantics", "spyre",
        "Tensors of a fixed list of devices are copied to the host to be printed; others are "
        "printed element by element, and computed with to find their width.",
    ),
    Patch(
        "module-to", ("torch.nn:Module.to",), "tensor_api.module_to", "semantics", "spyre",
        "Weights of products lie as products read them. There is no hook for a layout per "
        "parameter.",
    ),
    Patch(
        "module-spyre", ("torch.nn:Module.spyre",), "tensor_api.module_spyre",
        "semantics", "spyre",
        "module.spyre() chooses layouts as Module.to does; what PyTorch generates cannot.",
    ),
    Patch(
        "dlpack",
        ("torch:Tensor.__dlpack__", "torch:Tensor.__dlpack_device__", "torch:to_dlpack",
         "torch.utils.dlpack:to_dlpack"),
        "tensor_api.dlpack", "semantics", "spyre",
        "Device memory is tiled and has no addresses: an export would be read as something else.",
    ),
    Patch(
        "log-settings", ("torch._logging._internal:_parse_log_settings",),
        "tensor_api.log_settings", "semantics", "process",
        "An entry of TORCH_LOGS that PyTorch does not know ends `import torch`; ours are taken "
        "out first.",
    ),
    Patch(
        "custom-ops", ("torch:ops.spyre",), "compile_fx.custom_ops", "semantics", "new name",
        "torch.ops.spyre.<name> exists from `import torch` on; defining the operators then would "
        "import Inductor.",
    ),
]  # fmt: skip
"""Installed by `import torch`, when the device is registered."""


WITH_THEIR_MODULE = [
    Patch(
        "compile-fx", ("torch._inductor.compile_fx:compile_fx",), "compile_fx.compile_fx",
        "semantics", "spyre",
        "The main door: a device has no hook before the graph is traced, where the layouts of real "
        "inputs are known and options are set.",
    ),
    Patch(
        "narrow",
        ("torch._dynamo.variables.torch:ops_consuming_unbacked_scalars",
         "torch._dynamo.variables.torch:methods_consuming_unbacked_scalars"),
        "dynamo.narrow", "semantics", "process",
        "x.narrow(dim, start, length) with a start in device memory, in one graph: Dynamo misses "
        "the symbol of the start in the result.",
    ),
]  # fmt: skip
"""Installed when the module of their targets is imported."""


WITH_THE_COMPILER = [
    Patch(
        "call-function", ("torch._inductor.graph:GraphLowering.call_function",),
        "graph_lowering.call_function", "semantics", "spyre",
        "One OpFunc per node: every operation is realised, and what the card cannot do becomes a "
        "fallback while its ATen operation is known. There is no hook behind a node's lowering.",
    ),
    Patch(
        "plan", ("torch._inductor.graph:GraphLowering._update_scheduler",),
        "graph_lowering.plan_before_host_code", "semantics", "spyre",
        "The graph is planned as a whole between scheduler and host code; Inductor's hooks for a "
        "device come kernel by kernel.",
    ),
    Patch(
        "process-kernel", ("torch._inductor.ir:ExternKernel.process_kernel",),
        "graph_lowering.process_kernel", "semantics", "spyre",
        "Fakes are made of the arguments of a fallback, but not of constants that were folded.",
    ),
    Patch(
        "scaled-softmax", ("torch._inductor.fx_passes.joint_graph:pass_patterns",),
        "fx_passes.scaled_softmax", "semantics", "spyre",
        "softmax(x * number) becomes a dozen operations, which are not fused here. There is no "
        "option for a single pattern.",
    ),
    Patch(
        "reinplace", ("torch._inductor.fx_passes.reinplace:inplaceable_ops",),
        "fx_passes.safe_updates", "semantics", "spyre",
        "Inductor updates in place what is overwritten while it is read: wrong results, on the CPU "
        "too.",
    ),
    Patch(
        "sound-pickles", ("torch._inductor.codecache:GuardedCache.iterate_over_candidates",),
        "graph_caches.read_sound_pickles", "cache", "spyre",
        "Pickles are loaded whatever became of them; their name is a hash of what was written.",
    ),
    Patch(
        "closed-pickles",
        ("torch._inductor.codecache:FxGraphCache._write_to_local_cache",
         "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache._write_to_local_cache"),
        "graph_caches.write_closed", "cache", "spyre",
        "Nobody else may write what will be unpickled.",
    ),
    Patch(
        "sound-host-code",
        ("torch._inductor.codecache:PyCodeCache.write",
         "torch._inductor.output_code:CompiledFxGraph.write_to_disk"),
        "graph_caches.write_damaged_host_code_again", "cache", "spyre",
        "A file of host code that is there is taken, and whatever is in it is run.",
    ),
    Patch(
        "equal-layers",
        ("torch._inductor.graph:GraphLowering.run", "torch._inductor.graph:GraphLowering.run_node",
         "torch._inductor.graph:GraphLowering.compile_to_module"),
        "graph_lowering.equal_layers", "time", "spyre",
        "Layers that are equal are lowered and planned once; no hook around a graph's lowering.",
        "test_equal_layers_are_lowered_once", gain="7 / 0 %, 54 / 0 %",
    ),
    Patch(
        "never-fused",
        ("torch._inductor.scheduler:Scheduler.unfusable_node",
         "torch._inductor.scheduler:Scheduler.create_scheduler_node"),
        "scheduler.never_fused", "time", "spyre",
        "A device cannot say that it never fuses: loops are made and compared for nothing.",
        "test_loops_are_made_on_demand", gain="17 / 0 %, 8 / 0 %",
    ),
    Patch(
        "products-with-bias", ("torch._inductor.fx_passes.post_grad:pass_patterns",),
        "fx_passes.products_with_bias", "time", "spyre",
        "mm + bias becomes addmm, which our decomposition takes apart again. There is no option "
        "for a single pattern.",
        "test_products_are_not_traced_again", gain="3 / 0 %, 0 / 0 %",
    ),
    Patch(
        "possible-patterns",
        ("torch._inductor.pattern_matcher:PatternMatcherPass.apply",),
        "fx_passes.possible_ones", "time", "spyre",
        "Nodes are compared with patterns that need an operation which the graph does not have.",
        "test_patterns_that_cannot_match_are_not_tried", gain="4 / 0 %, 19 / 0 %",
    ),
    Patch(
        "known-values",
        ("torch._inductor.fx_passes.post_grad:FakeTensorUpdater",
         "torch._inductor.compile_fx:fake_tensor_prop"),
        "fake_tensor_updates.known_values", "time", "spyre",
        "Values of nodes are computed again though neither they nor their inputs have changed.",
        "test_values_that_are_known_are_not_computed_again", gain="8 / 0 %, 22 / 0 %",
    ),
    Patch(
        "trace-memo",
        ("torch.fx.experimental.symbolic_shapes:PropagateUnbackedSymInts.run_node",
         "torch.fx.experimental.symbolic_shapes:PropagateUnbackedSymInts.call_function",
         "torch.fx.experimental.symbolic_shapes:PropagateUnbackedSymInts.call_method"),
        "trace_memo.run_nodes", "time", "spyre",
        "AOTAutograd traces every operation of every layer, twice.",
        "test_an_operation_is_decomposed_once_for_all_layers", gain="8 / 0 %, 27 / 0 %",
    ),
]  # fmt: skip
"""Installed with the first graph that has spyre tensors."""


AROUND_THE_COMPILER = [
    Patch(
        "frame-room", (), "frame_chunks.with_room", "time", "spyre",
        "CPython maps and unmaps memory for each call at the end of a chunk of 16 KB of frames; "
        "the compiler gets one chunk of 2 MB.",
        "test_calls_at_the_end_of_a_chunk_take_new_memory_each_time", gain="8 / 0 %, 14 / 12 %",
    ),
    Patch(
        "collections-paused", (), "gc_pause.collections_paused", "time", "process",
        "Python's garbage collector goes over all that a compiler has made, again and again; "
        "graphs live until the end.",
        "test_a_graph_is_compiled_without_collections", gain="22 / 6 %, 11 / 0 %",
    ),
]  # fmt: skip
"""Not changes to PyTorch, but to the interpreter while a graph with spyre tensors is compiled."""


PATCHES = [*AROUND_THE_COMPILER, *WITH_THE_DEVICE, *WITH_THEIR_MODULE, *WITH_THE_COMPILER]

SCOPED = {
    "torch._inductor.ir:FlexibleLayout.allow_indexing": "A body is run to see what it computes "
    "before its layout is final, as Inductor itself does for dependencies.",
}
"""Other values of PyTorch's attributes for as long as a block takes (`install.scoped`), and why."""

ADDED = {
    "torch._inductor.ops_handler:DefaultHandler": "spyre_ops.<name>: LoopLevelIR has a fixed list "
    "of operations, and one that is not in it is called with a warning.",
}
"""What gets further attributes (`install.add_attribute`), and why."""
