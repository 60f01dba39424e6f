"""The list of stages is what runs, and the program can be looked at after each of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import Script
from torch_spyre._inductor import config, pipeline
from torch_spyre._inductor.host.scheduler import SpyreScheduling


def attend(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x.T, dim=-1)


def compiled(function=attend, **settings: object) -> torch.Tensor:
    torch._dynamo.reset()
    x = torch.randn(64, 128, dtype=torch.float16).to("spyre")
    with config.patch(**settings), torch._inductor.config.patch(force_disable_caches=True):
        return torch.compile(function)(x)


def test_stages_of_one_form_stand_together_and_have_names_of_their_own() -> None:
    forms = [stage.takes for stage in pipeline.PIPELINE]
    changes = [form for i, form in enumerate(forms) if i == 0 or forms[i - 1] != form]
    assert changes == [
        "pre-grad fx", "early fx", "fx", "loops", "early nodes", "nodes", "plan",
    ]  # fmt: skip
    names = [stage.name for stage in pipeline.PIPELINE]
    assert len(set(names)) == len(names)


def test_what_stands_in_the_list_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def watched(stage: pipeline.Stage) -> pipeline.Stage:
        if stage.function is None:
            return stage
        return stage._replace(function=lambda p: (seen.append(stage.name), stage.function(p))[1])

    monkeypatch.setattr(pipeline, "PIPELINE", tuple(map(watched, pipeline.PIPELINE)))
    compiled()
    assert seen == [stage.name for stage in pipeline.PIPELINE if stage.function is not None]


def test_a_stage_more_is_a_line_more(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: list[int] = []
    look = pipeline.Stage("look", "plan", lambda p: kernels.append(len(p.plan.kernels)), "a test")
    monkeypatch.setattr(pipeline, "PIPELINE", (*pipeline.PIPELINE, look))
    compiled()
    assert kernels == [1]


def test_the_plan_is_made_before_host_code_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails, upstream/graph_lowering.py need not wrap _update_scheduler."""
    planned: list[bool] = []
    stock = SpyreScheduling.codegen_node

    def codegen_node(self, node) -> None:
        graph = torch._inductor.virtualized.V.graph
        planned.append(pipeline.plan_of(graph).kernels[0].specs != [])
        stock(self, node)

    monkeypatch.setattr(SpyreScheduling, "codegen_node", codegen_node)
    compiled()
    assert planned and all(planned)


def test_the_program_is_printed_after_the_stages_that_are_named(script: Script) -> None:
    shown = script(
        """
        import torch
        x = torch.randn(64, 128, dtype=torch.float16).to("spyre")
        torch.compile(lambda x: torch.exp(x) + 1)(x)
        """,
        SPYRE_PRINT_AFTER="split,bind",
        TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
    )
    first, second = shown.split("---- after bind (plan) ----")
    assert first.startswith("---- after split (plan) ----\nkernel 0: 2 operations\n  exp {'p0': 64")
    assert "OpSpec(" in second and "device_coordinates" in second


def test_a_debug_directory_has_the_program_after_every_stage_that_ran(
    script: Script, tmp_path: Path
) -> None:
    script(
        """
        import torch
        x = torch.randn(64, 128, dtype=torch.float16).to("spyre")
        torch.compile(lambda x: torch.exp(x) + 1)(x)
        """,
        TORCH_COMPILE_DEBUG="1",
        TORCH_COMPILE_DEBUG_DIR=str(tmp_path),
    )
    (folder,) = tmp_path.rglob("spyre/stages")
    ran = {f"{s.takes.replace(' ', '_')}_{s.name}.txt" for s in pipeline.PIPELINE if s.function}
    assert {file.name for file in folder.iterdir()} == ran
    assert "torch.ops.aten.exp" in (folder / "fx_fold_constants.txt").read_text()


def test_a_validator_runs_after_its_stage_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose_an_operation(planning) -> None:
        split(planning)
        planning.plan.kernels[0].operations[0].ranges.clear()

    at = next(i for i, s in enumerate(pipeline.PIPELINE) if s.name == "split")
    split = pipeline.PIPELINE[at].function
    broken = list(pipeline.PIPELINE)
    broken[at] = broken[at]._replace(function=lose_an_operation)
    monkeypatch.setattr(pipeline, "PIPELINE", tuple(broken))
    rule = r"BrokenRule: buf0, batchmatmul: reduced symbols: found \[r0\], allowed \[\]"
    with pytest.raises(torch._inductor.exc.InductorError, match=rule):
        compiled(validate=True)
