"""Random operations on spyre tensors take generators of the card and of the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.support.dlfloat16_reference import round_trip
from torch_spyre import _C

G = torch.Generator

OPERATIONS = {
    "rand": lambda g, d: torch.rand(5, 7, generator=g, device=d),
    "rand.out": lambda g, d: torch.rand(5, 7, generator=g, out=torch.empty(5, 7, device=d)),
    "rand_like": lambda g, d: torch.rand_like(torch.ones(6, device=d), generator=g),
    "randn": lambda g, d: torch.randn(33, generator=g, device=d),
    "randn.out": lambda g, d: torch.randn(4, 3, generator=g, out=torch.empty(4, 3, device=d)),
    "randn_like": lambda g, d: torch.randn_like(torch.ones(6, device=d), generator=g),
    "randint": lambda g, d: torch.randint(100, (9,), generator=g, device=d),
    "randint.low": lambda g, d: torch.randint(-5, 5, (3, 3), generator=g, device=d),
    "randint_like": lambda g, d: torch.randint_like(torch.ones(6, device=d), 9, generator=g),
    "randperm": lambda g, d: torch.randperm(50, generator=g, device=d),
    "randperm.int32": lambda g, d: torch.randperm(50, generator=g, device=d, dtype=torch.int32),
    "random_": lambda g, d: torch.zeros(8, device=d).random_(generator=g),
    "random_.to": lambda g, d: torch.zeros(8, device=d).random_(9, generator=g),
    "random_.from": lambda g, d: torch.zeros(8, device=d).random_(0, 9, generator=g),
    "random_ of integers": lambda g, d: torch.zeros(8, device=d).long().random_(0, 9, generator=g),
    "uniform_": lambda g, d: torch.zeros(8, device=d).uniform_(-1, 1, generator=g),
    "normal_": lambda g, d: torch.zeros(40, device=d).normal_(2, 3, generator=g),
    "normal_ of a view": lambda g, d: torch.zeros(6, 5, device=d)[1:, ::2].normal_(generator=g),
    "normal_ of nothing": lambda g, d: torch.zeros(0, 5, device=d).normal_(generator=g),
    "normal_ of a number": lambda g, d: torch.zeros((), device=d).normal_(generator=g),
    "normal": lambda g, d: torch.normal(1.0, 2.0, (6,), generator=g, device=d),
    "normal of means": lambda g, d: torch.normal(torch.ones(6, device=d), 2.0, generator=g),
    "normal of both": lambda g, d: torch.normal(
        torch.ones(6, device=d), torch.full((6,), 0.5, device=d), generator=g
    ),
    "cauchy_": lambda g, d: torch.zeros(8, device=d).cauchy_(generator=g),
    "exponential_": lambda g, d: torch.zeros(8, device=d).exponential_(generator=g),
    "geometric_": lambda g, d: torch.zeros(8, device=d).geometric_(0.3, generator=g),
    "log_normal_": lambda g, d: torch.zeros(8, device=d).log_normal_(generator=g),
    "bernoulli": lambda g, d: torch.bernoulli(torch.full((30,), 0.3, device=d), generator=g),
    "bernoulli.p": lambda g, d: torch.bernoulli(torch.ones(30, device=d), 0.3, generator=g),
    "bernoulli_": lambda g, d: torch.zeros(30, device=d).bernoulli_(0.3, generator=g),
    "bernoulli_.Tensor": lambda g, d: torch.zeros(30, device=d).bernoulli_(
        torch.full((30,), 0.3, device=d), generator=g
    ),
    "multinomial": lambda g, d: torch.multinomial(torch.ones(10, device=d), 4, generator=g),
    "multinomial of rows": lambda g, d: torch.multinomial(
        torch.ones(3, 10, device=d), 12, replacement=True, generator=g
    ),
    "poisson": lambda g, d: torch.poisson(torch.full((9,), 4.0, device=d), generator=g),
    "binomial": lambda g, d: torch.binomial(
        torch.full((9,), 10.0, device=d), torch.full((9,), 0.4, device=d), generator=g
    ),
    "_standard_gamma": lambda g, d: torch._standard_gamma(torch.ones(9, device=d), generator=g),
    "rrelu_with_noise": lambda g, d: torch.ops.aten.rrelu_with_noise(
        torch.full((9,), -1.0, device=d), torch.zeros(9, device=d), 0.1, 0.4, True, g
    ),
    "init.xavier_uniform_": lambda g, d: torch.nn.init.xavier_uniform_(
        torch.empty(8, 6, device=d), generator=g
    ),
    "init.trunc_normal_": lambda g, d: torch.nn.init.trunc_normal_(
        torch.empty(8, 6, device=d), generator=g
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("of", ["cpu", "spyre"])
def test_the_numbers_are_those_of_the_cpu(name, of):
    draw = OPERATIONS[name]
    there, here = G(of).manual_seed(5), G().manual_seed(5)
    for _ in range(2):  # the second draw says whether the first moved the generator on as far
        actual, expected = draw(there, "spyre"), draw(here, "cpu")
        assert actual.device.type == "spyre" and actual.dtype == expected.dtype
        assert torch.equal(actual.cpu(), expected)


def test_sixteen_bits_are_the_numbers_of_the_cpu_rounded_to_the_card():
    for dtype in (torch.float16, torch.bfloat16):
        drawn = torch.randn(200, generator=G().manual_seed(1), dtype=dtype, device="spyre").cpu()
        expected = torch.randn(200, generator=G().manual_seed(1), dtype=dtype)
        assert torch.equal(drawn, round_trip(expected))


def test_a_generator_of_the_cpu_leaves_that_of_the_card_alone():
    state = torch.spyre.get_rng_state()
    default = torch.random.get_rng_state()
    torch.rand(3, generator=G(), device="spyre")
    assert torch.equal(torch.spyre.get_rng_state(), state)
    assert torch.equal(torch.random.get_rng_state(), default)


def test_the_default_generator_of_the_cpu_can_be_named():
    torch.manual_seed(4)
    drawn = torch.rand(3, generator=torch.default_generator, device="spyre").cpu()
    torch.manual_seed(4)
    assert torch.equal(drawn, torch.rand(3))


def test_it_holds_in_inference_mode_and_in_threads():
    from concurrent.futures import ThreadPoolExecutor

    with torch.inference_mode():
        drawn = torch.rand(3, generator=G().manual_seed(2), device="spyre").cpu()
    assert torch.equal(drawn, torch.rand(3, generator=G().manual_seed(2)))
    shared = G().manual_seed(3)
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda _: torch.rand(8, generator=shared, device="spyre").cpu(),
                             range(100)))  # fmt: skip
    again = G().manual_seed(3)
    expected = {tuple(torch.rand(8, generator=again).tolist()) for _ in range(100)}
    assert {tuple(row.tolist()) for row in rows} == expected


def test_a_compiled_graph_draws_the_same_numbers():
    def f(x, g):
        return x + torch.rand(8, generator=g, device="spyre") * 2

    x = torch.ones(8)
    drawn = torch.compile(f)(x.to("spyre"), G().manual_seed(6)).cpu()
    assert torch.equal(drawn, x + torch.rand(8, generator=G().manual_seed(6)) * 2)


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: torch.rand(3, generator=g),
        lambda g: torch.randperm(3, generator=g),
        lambda g: torch.randint(3, (3,), generator=g, device="cpu"),
        lambda g: torch.zeros(3).normal_(generator=g),
        lambda g: torch.multinomial(torch.ones(3), 2, generator=g),
        lambda g: torch.bernoulli(torch.ones(3), generator=g),
    ],
)
def test_a_generator_of_the_card_is_none_for_tensors_of_the_cpu(draw):
    with pytest.raises(RuntimeError, match=r"(?i)expected a .*cpu.* found .*spyre"):
        draw(G("spyre"))


def test_a_generator_of_another_card_is_refused(script):
    told = script(
        """
        import torch
        g = torch.Generator("spyre:1")
        print(torch.rand(2, generator=g, device="spyre:1").device)
        try:
            torch.rand(2, generator=g, device="spyre:0")
        except RuntimeError as problem:
            print(problem)
        """,
        AIU_WORLD_SIZE="2",
    )
    assert told.splitlines()[0] == "spyre:1"
    assert "Expected a generator of spyre:0 or of the cpu, but found one of spyre:1" in told


def test_the_state_of_a_generator_of_the_cpu_is_where_the_cpu_leaves_it():
    there, here = G().manual_seed(8), G().manual_seed(8)
    torch.randn(17, generator=there, device="spyre")
    torch.randn(17, generator=here)
    assert torch.equal(there.get_state(), here.get_state())
    assert _C.get_rng_state(0).dtype == torch.uint8
