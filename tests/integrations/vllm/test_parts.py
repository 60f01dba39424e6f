"""Batches of vLLM, cut into parts of fixed sizes."""

from __future__ import annotations

import random

import pytest
from torch_spyre_vllm.parts import PAGE, Cutter, Sizes, fitting, steps

SIZES = Sizes(batches=(1, 4), chunks=(64, 256), pages=(4, 16))


def cut(starts: list[int], lengths: list[int], *, encoder: bool = False) -> list:
    return list(Cutter(SIZES, encoder).cut(starts, lengths))


def test_sequences_with_one_token_are_put_together():
    (part,) = cut([0, 1, 2, 3], [10, 20, 300])
    assert part.size == (4, 1, 16), "4 sequences, and pages enough for 300 tokens"
    assert (part.sequences, part.rows) == ([0, 1, 2], [0, 1, 2])


def test_more_sequences_than_the_largest_batch_are_several_parts():
    first, second = cut(list(range(6)), [5] * 5)
    assert (first.size, second.size) == ((4, 1, 4), (1, 1, 4))
    assert (first.rows, second.rows) == ([0, 1, 2, 3], [4])


def test_a_long_prompt_is_cut_and_each_piece_sees_what_was_before_it():
    first, second = cut([0, 300], [300])
    assert (first.size, second.size) == ((1, 256, 4), (1, 64, 16))
    assert first.rows + second.rows == list(range(300))


def test_a_prompt_among_continued_sequences_is_a_part_of_its_own():
    prompt, rest = cut([0, 1, 31, 32], [7, 30, 9])
    assert (prompt.sequences, prompt.rows) == ([1], list(range(1, 31)))
    assert (rest.sequences, rest.rows) == ([0, 2], [0, 31])


def test_an_encoder_sees_each_sequence_at_once():
    one, other = cut([0, 1, 101], [1, 100], encoder=True)
    assert (one.size, other.size) == ((1, 64, 0), (1, 256, 0))


def test_a_sequence_that_no_program_holds_is_an_error_that_names_the_sizes():
    with pytest.raises(ValueError, match="17 is more than the largest size, 16: give additional"):
        cut([0, 1], [17 * PAGE])
    with pytest.raises(ValueError, match="300 is more than the largest size, 256"):
        cut([0, 300], [300], encoder=True)


def test_every_token_of_any_batch_is_in_one_part_whose_program_is_among_those_compiled():
    chosen = random.Random(0)
    for _ in range(300):
        new = [chosen.choice([1, 1, chosen.randint(1, 500)]) for _ in range(chosen.randint(1, 9))]
        starts = [sum(new[:i]) for i in range(len(new) + 1)]
        lengths = [n + chosen.randint(0, 16 * PAGE - n) for n in new]
        cutter = Cutter(SIZES)
        parts = list(cutter.cut(starts, lengths))
        assert sorted(row for part in parts for row in part.rows) == list(range(sum(new)))
        for part in parts:
            assert part.size in cutter.all_sizes()
            assert len(part.rows) <= part.count * part.queries
            # Keys up to the last token of the part fit into its pages.
            for i in part.sequences:
                last = max(row for row in part.rows if starts[i] <= row < starts[i + 1])
                assert lengths[i] - (starts[i + 1] - 1 - last) <= part.pages * PAGE


def test_sizes_cover_the_longest_sequence_and_the_user_can_choose_them():
    sizes = Sizes.choose(2000, 256, encoder=False, wanted={})
    assert sizes.pages == (16, 32)
    assert fitting(sizes.pages, 32) == 32
    assert Sizes.choose(100, 1, encoder=False, wanted={}).batches == (1,)
    assert Sizes.choose(100, 1, encoder=False, wanted={"chunks": [128, 32]}).chunks == (32, 128)
    assert Sizes.choose(512, 1, encoder=True, wanted={}).chunks == (64, 256, 512)
    assert (steps(16, 4, 130), steps(16, 4, 3)) == ((16, 64, 130), (3,))


def test_programs_for_few_pages_come_first():
    assert Cutter(SIZES).first_sizes() == [(1, 1, 4), (4, 1, 4), (1, 64, 4), (1, 256, 4)]
    assert Cutter(SIZES, encoder=True).first_sizes() == [(1, 64, 0), (1, 256, 0)]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [({"chunk": [1]}, r"unknown sizes \['chunk'\].*'chunks'"), ({"pages": [0]}, "at least 1"),
     ({"batches": []}, "list of numbers")],
)  # fmt: skip
def test_wrong_sizes_are_errors_that_say_which_there_are(wanted: dict, said: str):
    with pytest.raises(ValueError, match=said):
        Sizes.choose(100, 1, encoder=False, wanted=wanted)
