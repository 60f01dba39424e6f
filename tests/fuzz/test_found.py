"""Programs that were wrong or refused once, as the fuzzer shrank them; each says what was wrong."""

from __future__ import annotations

import pytest
import torch

from tests.fuzz.programs import Input, Program
from tests.fuzz.run import check

FOUND = {
    "rows are stored into a tensor whose sticks a cast left in another order": Program(
        (Input("a", (3, 39), "F16"), Input("b", (39,), "F32", seed=1), Input("c", (1, 39), "F32"),
         Input("i", (1,), "I64", "index3", 408)),
        ("d = torch.mul(a, b)", "e = d.index_copy(0, i, c)"), ("e",),
    ),
    "rows are gathered from a tensor whose sticks a cast left in another order": Program(
        (Input("a", (3, 39), "F16"), Input("i", (2,), "I64", "index3")),
        ("b = a.to(F32)", "c = b[i] + 1"), ("c",),
    ),
    "a product is stored into a tensor whose sticks a cast left in another order": Program(
        (Input("a", (3, 39), "F16"), Input("x", (2, 8), "F32"), Input("y", (8, 39), "F32")),
        ("b = a.to(F32) * 2", "b[0:2] = x @ y"), ("b",),
    ),
    "argmax of a tensor that is expanded along what is kept": Program(
        (Input("a", (1, 2), "F16", seed=1),),
        ("b = a.expand(2, 2, 2)", "c = torch.argmax(b, -1, keepdim=True)"), ("c",),
    ),
    "the largest of a tensor that is expanded along what is compared": Program(
        (Input("a", (4, 1), "F16", seed=1),),
        ("b = torch.topk(a.expand(4, 5), 1, -1)[0]",), ("b",),
    ),
    "rows are gathered from an input that is a view in steps": Program(
        (Input("a", (1, 1, 25, 1), "F16", view="[:, :, ::2]"), Input("i", (1,), "I64", "index13")),
        ("b = torch.index_select(a, -2, i)",), ("b",),
    ),
    "nothing is padded to something": Program(
        (Input("a", (1, 0), "F16"), Input("b", (3, 0), "I64"), Input("c", (0, 2), "BOOL")),
        ("d = F.pad(a, [2, 2], value=-2)", "e = torch.sum(d, (0, 1), keepdim=True)",
         "f = F.pad(b, [2, 2, 1, 0], value=3)", "g = F.pad(c, [0, 0, 1, 2], value=1)"),
        ("e", "f", "g"),
    ),
    "a piece of a cat is changed in place": Program(
        (Input("a", (3, 4), "F16"), Input("b", (3, 1), "F16", seed=1),
         Input("i", (1,), "I64", "index4")),
        ("c = a + 1", "d = torch.cat([c, a], 0)", "e = c.index_copy(-1, i, b)"), ("d", "e"),
    ),
    "a cat is changed in place, and a piece of it is used": Program(
        (Input("a", (3, 4), "F16"), Input("b", (6, 1), "F16", seed=1),
         Input("i", (1,), "I64", "index4")),
        ("c = a + 1", "d = torch.cat([c, a], 0)", "e = d.index_copy(-1, i, b)"), ("c", "e"),
    ),
    "a constant is changed by a step of the host": Program(
        (Input("a", (1, 0), "F16"), Input("i", (1,), "I64", "index7"), Input("b", (1, 1), "F16")),
        ("c = F.pad(a, [2, 5], value=0)", "d = c.index_add(-1, i, b)"), ("d",),
    ),
    "of equal numbers in a row that is alone the first is the largest": Program(
        (Input("a", (6,), "F16"),),
        ("b = a.masked_fill(a > 0, 0)", "c = b.unflatten(0, (1, 6))",
         "d = torch.argmax(c, 1, keepdim=True)"),
        ("d",),
    ),
    "an expanded tensor is updated as a tensor of its own": Program(
        (Input("a", (1,), "F16"), Input("i", (1,), "I64", "index3"), Input("b", (1, 2), "F16")),
        ("c = torch.square(a)", "d = c.expand(3, 2)", "e = d.index_copy(-2, i, b)"), ("e",),
    ),
    "an updated input is overwritten while the update is still needed": Program(
        (Input("a", (22,), "F32", seed=516), Input("b", (1,), "F32", seed=506),
         Input("i", (1,), "I64", "index22")),
        ("c = a.index_add(0, i, b)", "a.add_(3)", "d = c[21]"), ("c", "d"),
    ),
    "a write to a view that expands nothing is not rounded twice": Program(
        (Input("a", (2, 2), "F16", "positive", seed=191), Input("b", (1, 1), "F16", seed=119)),
        ("c = a.expand(2, 2)", "c.add_(b)"), ("c",),
    ),
    "a piece of a cat is read in another shape": Program(
        (Input("a", (3, 130, 7, 1), "F16", seed=870),),
        ("b = torch.cos(a)", "c = b.reshape(26, 5, 21)", "d = torch.cat([a, b], 2)"), ("c", "d"),
    ),
    "an update is padded": Program(
        (Input("a", (2, 2, 1), "F16", seed=9), Input("i", (1,), "I64", "index2", seed=670),
         Input("b", (2, 2, 2), "F16")),
        ("c = b.index_copy(-1, i, a)", "d = F.pad(c, [2, 1], value=1)"), ("d",),
    ),
    "a piece of a cat is read by a later kernel": Program(
        (Input("a", (3,), "F16", seed=274), Input("b", (1,), "F16", seed=520)),
        ("a.add_(b)", "c = F.pad(a, [2, 2], value=0)", "d = c.masked_fill(c > 0, 0)",
         "e = torch.argmax(d.unflatten(0, (1, 7)), 1, keepdim=True)"),
        ("e",),
    ),
    "a piece of a cat is a result, as a view": Program(
        (Input("a", (), "BOOL", seed=756), Input("b", (1, 1), "BOOL", seed=2),
         Input("c", (1, 1), "BOOL", seed=1)),
        ("d = torch.eq(b, a)", "e = d.transpose(-2, 1)", "f = torch.cat([b, c, d], 0)",
         "g = torch.any(f, 1, keepdim=False)"),
        ("g", "e"),
    ),
    "windows of what is known while compiling overlap": Program(
        (Input("a", (3, 1), "F16", seed=1),),
        ("b = torch.argmax(a, -1, keepdim=False)", "c = b.unfold(0, 2, 1)"), ("c",),
    ),
    "nothing has sticks along nothing": Program(
        (Input("a", (2, 0, 1), "F16", seed=478, stick=1),), ("b = a.transpose(1, -2)",), ("b",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("lx", [False, True], ids=["memory", "scratchpads"])
def test_a_program_that_the_fuzzer_found_is_right(name: str, lx: bool) -> None:
    check(FOUND[name], cores=5, lx=lx)


def test_inductor_for_the_cpu_still_updates_in_place_what_is_overwritten() -> None:
    """When this fails, torch_spyre/_inductor/fx/reinplace.py can go."""

    def f(x, i, s):
        y = x.index_add(0, i, s)
        x.zero_()
        return y

    x, i, s = torch.ones(3, 2), torch.tensor([1]), torch.full((1, 2), 7.0)
    assert not torch.equal(torch.compile(f)(x.clone(), i, s), f(x.clone(), i, s))
