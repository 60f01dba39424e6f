"""Documented entry point: `add_pass`, `remove_pass`. The list of stages is in `pipeline.py`."""

from torch_spyre._inductor.pipeline import STAGES, add_pass, remove_pass

__all__ = ["STAGES", "add_pass", "remove_pass"]
