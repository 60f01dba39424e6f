"""Inductor's caches of graphs: what is in a file need not be what was written (graph_cache.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._inductor.codecache import get_hash, get_path, sha256_hash

from torch_spyre._inductor.capture import graph_cache
from torch_spyre._inductor.state import is_compiling

_Function = Callable[..., Any]


def read_sound_pickles(stock: _Function) -> _Function:
    """Pickles are loaded whoever wrote them and whatever became of them. Their name is a hash of
    what was written."""

    def iterate_over_candidates(cls: Any, local: bool, remote_cache: Any, key: str) -> Any:
        if local and is_compiling():
            graph_cache.discard_unsound(cls._get_tmp_dir_for_key(key))
        return stock(cls, local, remote_cache, key)

    return iterate_over_candidates


def write_closed(stock_graph: _Function, stock_autograd: _Function) -> tuple[_Function, _Function]:
    """Nobody else may write what will be unpickled."""
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
    from torch._inductor.codecache import FxGraphCache

    return _closed(FxGraphCache, stock_graph), _closed(AOTAutogradCache, stock_autograd)


def _closed(cache: Any, stock: _Function) -> _Function:
    def _write_to_local_cache(key: str, content: bytes) -> None:
        stock(key, content)
        if is_compiling():
            folder = cache._get_tmp_dir_for_key(key)
            graph_cache.close(f"{folder}/{sha256_hash(content)}")

    return _write_to_local_cache


def write_damaged_host_code_again(
    stock_write: _Function, stock_write_to_disk: _Function
) -> tuple[_Function, _Function]:
    """A file of host code that is there is taken, and whatever is in it is run."""

    def write(cls: Any, source_code: str, extra: str = "") -> tuple[str, str]:
        if is_compiling():
            key = get_hash(source_code.strip(), extra, "code")
            graph_cache.discard_if_changed(get_path(key, "py")[2], source_code)
        return stock_write(cls, source_code, extra)

    def write_to_disk(self: Any) -> str:
        if is_compiling():
            graph_cache.discard_if_changed(get_path(self.cache_key, "py")[2], self.source_code)
        return stock_write_to_disk(self)

    return write, write_to_disk
