"""Programs are compiled once, loaded by whoever comes later, and compute what the CPU does."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from examples.chat import programs as programs_module
from examples.chat.decoder import CHUNK, Decoder
from examples.chat.programs import identity, programs
from tests.examples.chat.conftest import ROWS, make_model, needs_models
from torch_spyre.cache.store import Store

pytestmark = needs_models
TOKENS = torch.randint(0, 250, (ROWS,), generator=torch.Generator().manual_seed(4)).tolist()

LENGTHS = (CHUNK + 3, CHUNK + 4, 90, ROWS)
"""Two chunks, one token, a chunk again, and one that has to begin with tokens that are known."""


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("kept") / "spyre-chat")


def on_card(model, kept):
    decoder = Decoder(copy.deepcopy(model).half().to("spyre"), ROWS)
    told: list[str] = []
    made = programs(decoder, kept, told.append)
    decoder.prefill, decoder.decode = made.prefill, made.decode
    return decoder, made, told


def test_programs_agree_with_the_cpu_and_the_second_process_compiles_nothing(
    model, kept, monkeypatch
):
    decoder, made, told = on_card(model, kept)
    assert made.compiled == 2 and len(told) == 1
    torch.spyre.reset_fallback_counts()
    reference = Decoder(model, ROWS)
    found = []
    for length in LENGTHS:
        expected, actual = reference.next(TOKENS[:length]), decoder.next(TOKENS[:length])
        # About 12 roundings to nine fraction bits in each of two layers, and four around them.
        error = (actual - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt()
        assert error < 2**-10 * math.sqrt((12 * 2 + 4) / 3)
        found.append(actual)
    assert not torch.spyre.fallback_counts(), "the card left something to the host"

    monkeypatch.setattr(programs_module, "_compile", lambda *_: pytest.fail("it is there already"))
    again, made, told = on_card(model, kept)
    assert made.compiled == 0 and not told
    for length, before in zip(LENGTHS, found):
        assert torch.equal(again.next(TOKENS[:length]), before)


def test_a_program_that_was_damaged_is_compiled_again(model, kept, monkeypatch):
    on_card(model, kept)
    for file in kept.root.glob("program-*/program"):
        content = file.read_bytes()
        file.write_bytes(content[:1000] + bytes([content[1000] ^ 1]) + content[1001:])
    compiled = []
    monkeypatch.setattr(
        programs_module, "_compile", lambda decoder, count: compiled.append(count) or _Program()
    )
    with pytest.warns(UserWarning, match="were not kept"):
        on_card(model, kept)
    assert compiled == [CHUNK, 1]


class _Program:
    """Stands for what was compiled."""

    def disable_guard_check(self) -> None:
        pass

    def save_compiled_function(self, path: str) -> None:
        raise OSError(28, "No space left on device")


def test_a_disk_without_room_costs_the_next_process_and_not_this_one(model, tmp_path, monkeypatch):
    monkeypatch.setattr(programs_module, "_compile", lambda *_: _Program())
    with pytest.warns(UserWarning, match="were not kept: .*No space left"):
        _, made, _ = on_card(model, Store(tmp_path / "full"))
    assert made.compiled == 2


def test_programs_of_other_models_shapes_and_settings_are_others(model):
    from torch_spyre._inductor import config

    decoder = Decoder(model, ROWS)
    known = identity(decoder)
    assert identity(Decoder(model, ROWS)) == known
    assert identity(Decoder(model, CHUNK)) != known
    assert identity(Decoder(make_model(rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
                            ROWS)) != known  # fmt: skip
    assert identity(Decoder(copy.deepcopy(model).half(), ROWS)) != known
    with config.patch(share_layers=not config.share_layers):
        assert identity(decoder) != known
