"""What the compiled model consists of is counted once and kept, or counted again."""

from __future__ import annotations

import json

import pytest
import torch

import torch_spyre
from examples.semantic_search import anatomy
from tests.examples.semantic_search.conftest import needs_models
from torch_spyre import backend


def test_bytes_of_a_program_are_those_of_its_tensors():
    from pathlib import Path

    x, y = (torch.ones(512, 256, dtype=torch.float16).to("spyre") for _ in range(2))
    told = torch_spyre.explain(torch.add, x, y)
    [(_, _, directory)] = told.kernels
    # Two tensors are read and one is written, two bytes each element, no padding.
    assert anatomy.program_bytes(Path(directory) / backend.OUTPUT) == 3 * 512 * 256 * 2


@needs_models
class TestDescribe:
    IDS = MASK = torch.ones(2, 64, dtype=torch.int32)

    @pytest.fixture(autouse=True)
    def own_cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
        return tmp_path

    @pytest.fixture
    def calls(self, monkeypatch):
        """How often something was explained."""
        made: list[int] = []
        explain = torch_spyre.explain

        def counting(*args):
            made.append(1)
            return explain(*args)

        monkeypatch.setattr(torch_spyre, "explain", counting)
        return made

    def describe(self, function, model="a model"):
        ids, mask = self.IDS.to("spyre"), self.MASK.to("spyre")
        return anatomy.describe(function, ids, mask, model)

    def test_operations_and_host_steps_are_counted(self):
        def embed(ids, mask):
            return torch.lgamma(ids.half() * mask.half()) + 1

        found = self.describe(embed)
        assert found.host_steps == ["aten.lgamma.default"]
        assert found.kernels == 2 and found.operations >= 2 and found.graph_breaks == 0

    def test_the_second_time_it_is_known(self, calls):
        first = self.describe(lambda ids, mask: ids.half() + mask.half())
        second = self.describe(lambda ids, mask: ids.half() + mask.half())
        assert first == second and len(calls) == 1

    def test_another_model_is_another_one(self, calls):
        def embed(ids, mask):
            return ids.half() + mask.half()

        self.describe(embed)
        self.describe(embed, "another model")
        assert len(calls) == 2

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"kernels": 1}'])
    def test_a_damaged_note_is_made_again(self, calls, own_cache, content):
        def embed(ids, mask):
            return ids.half() + mask.half()

        first = self.describe(embed)
        [file] = (own_cache / "spyre-search").iterdir()
        file.write_text(content)
        assert self.describe(embed) == first and len(calls) == 2
        assert json.loads(file.read_text())["operations"] == first.operations

    def test_an_interruption_leaves_no_half_of_a_note(self, own_cache, monkeypatch):
        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(anatomy.json, "dump", interrupted)
        with pytest.raises(KeyboardInterrupt):
            self.describe(lambda ids, mask: ids.half() + mask.half())
        assert list((own_cache / "spyre-search").iterdir()) == []
