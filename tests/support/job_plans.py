"""SpyreCode directories for tests: manifests of job plans, written out and run."""

from __future__ import annotations

import gc
import json
import struct
from pathlib import Path
from typing import Any

import torch

import torch_spyre._C as _C

BASE = 0x1C00000000
END = 0x2000000000
EMPTY_PROGRAM = b"SPYREPRG" + struct.pack("<II", 5, 0)
ALLOCATION = 1024
DATA_AT = 256  # where the plans below move data, after the program

Json = Any


def entry(command: str, **properties: Json) -> Json:
    return {"command": command, "properties": properties}


def host_compute(ohandle: str, size: int = 64, **changes: Json) -> Json:
    properties = {"ohandle": ohandle, "size": str(size), "ishape": ["0"], "ihandle": "", "hcm": {}}
    return entry("ComputeOnHost", **{**properties, **changes})


def transfer(dirn: str, handle: str, size: int = 64, offset: int = DATA_AT) -> Json:
    return entry(
        "DataTransfer", dirn=dirn, dev_ptr=str(BASE + offset), size=str(size), host_handle=handle
    )


def h2d(handle: str, size: int = 64, offset: int = DATA_AT) -> Json:
    return transfer("false", handle, size, offset)


def d2h(handle: str, size: int = 64, offset: int = DATA_AT) -> Json:
    return transfer("true", handle, size, offset)


def compute(offset: int = 0) -> Json:
    return entry("ComputeOnDevice", job_bin_ptr=str(BASE + offset))


def manifest(*steps: Json, size: int = len(EMPTY_PROGRAM)) -> Json:
    init = entry("InitTransfer", init_bin_file="init.bin", dev_ptr=str(BASE), size=str(size))
    return {
        "JobPreparationPlan": [entry("Allocate", size=str(ALLOCATION)), init],
        "JobExecPlan": list(steps),
    }


def write(directory: Path, content: Json, program: bytes = EMPTY_PROGRAM) -> Path:
    directory.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (directory / "spyrecode.json").write_text(text)
    (directory / "init.bin").write_bytes(program)
    return directory


def prepare(directory: Path, *steps: Json, program: bytes = EMPTY_PROGRAM) -> _C.JobPlan:
    content = manifest(*steps, size=len(program))
    return _C.prepare_kernel(str(write(directory, content, program)))


def run(plan: _C.JobPlan, *args: torch.Tensor) -> None:
    _C.launch_jobplan(plan, args)
    torch.spyre.synchronize()


def allocations() -> int:
    gc.collect()
    torch.spyre.synchronize()
    return torch.spyre.memory_stats()["allocation.all.current"]
