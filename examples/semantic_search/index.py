"""Embeddings of earlier runs: a text that has not changed is not embedded again.

In: texts, what embeds them, and everything that their embeddings depend on. Out: their embeddings,
most of them from disk when this was done before. Some of the known ones are always embedded again
and compared, so that an index that is wrong is found out and made anew.

    >>> index = Index(store(), repr((weights, versions)))
    >>> found = index.recall(["A cat sleeps."], embed, torch.equal)
    >>> found.rows.shape, found.recalled
    (torch.Size([1, 384]), 0)

An entry of the store has two files: `texts`, a SHA-256 for each text, and `rows`, their embeddings
in float32, in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from torch_spyre.cache.store import Store

CHECKED = 64
"""How many of the known texts are embedded again."""

_HASH = hashlib.sha256().digest_size

EmbedTexts = Callable[[list[str]], torch.Tensor]
"""Texts to rows of float32, in their order."""

Same = Callable[[torch.Tensor, torch.Tensor], bool]
"""Whether rows of an earlier run and those of this one are the same."""


def store() -> Store:
    """Beside Inductor's caches, and bounded like them."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Store(Path(cache_dir()) / "spyre-search-index")


@dataclass(frozen=True)
class Recalled:
    """Embeddings of all texts, and where they come from."""

    rows: torch.Tensor
    recalled: int = 0
    """Rows that an earlier run made and this one did not make again."""
    checked: int = 0
    """Rows that both made, with the same result."""
    problem: str = ""
    """Why the rows of an earlier run were not used, or why the index was not saved."""


class Index:
    """What one model has made of texts. `maker` is all that its embeddings depend on."""

    def __init__(self, store: Store, maker: str) -> None:
        self._store = store
        self._maker = hashlib.sha256(maker.encode()).hexdigest()

    def recall(self, texts: Sequence[str], embed: EmbedTexts, same: Same) -> Recalled:
        """Embeddings of the texts, from earlier runs where they are known."""
        keys = [_key(text) for text in texts]
        rows = self._read()
        known = [i for i, key in enumerate(keys) if key in rows]
        again = known[:: -(-len(known) // CHECKED)] if known else []
        fresh = sorted({*range(len(texts))}.difference(known).union(again))
        made = dict(zip(fresh, embed([texts[i] for i in fresh]))) if fresh else {}
        problem = ""
        if again:
            before = torch.stack([rows[keys[i]] for i in again])
            if not same(before, torch.stack([made[i] for i in again])):
                problem = "embeddings of an earlier run were not the same: all were made anew"
                rest = [i for i in known if i not in made]
                made |= dict(zip(rest, embed([texts[i] for i in rest]))) if rest else {}
                again = []
        all_rows = [made[i] if i in made else rows[key] for i, key in enumerate(keys)]
        found = torch.stack(all_rows) if all_rows else torch.empty(0, 0)
        if len(made) > len(again):  # something is new
            problem = self._write(keys, found) or problem
        return Recalled(found, len(texts) - len(made), len(again), problem)

    def _read(self) -> dict[bytes, torch.Tensor]:
        entry = self._store.find(self._maker[:24], self._maker)
        if entry is None:
            return {}
        hashes = (entry / "texts").read_bytes()
        keys = [hashes[i : i + _HASH] for i in range(0, len(hashes), _HASH)]
        data = bytearray((entry / "rows").read_bytes())
        return dict(zip(keys, torch.frombuffer(data, dtype=torch.float32).view(len(keys), -1)))

    def _write(self, keys: list[bytes], rows: torch.Tensor) -> str:
        """Replace what was kept; "" or why that is impossible."""

        def fill(folder: Path) -> None:
            (folder / "texts").write_bytes(b"".join(keys))
            (folder / "rows").write_bytes(rows.float().contiguous().numpy().tobytes())

        name = self._maker[:24]
        try:
            if self._store.find(name, self._maker) is not None:
                self._store.drop(name)
            self._store.publish(name, self._maker, fill)
        except OSError as error:
            return f"embeddings were not saved for the next run: {error}"
        return ""


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
