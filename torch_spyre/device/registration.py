"""Registers `spyre` as the PrivateUse1 device: name, `torch.spyre` module, tensor methods, patches.

In: a torch that is (nearly) imported. Out: a process in which `torch.device("spyre")` works. Takes
12 ms, of which PyTorch has 7 to note our kernels, and starts no card. `import torch` waits for it:
what has time until its first use is imported then (test_import_loads_no_more_than_it_needs).
"""

from __future__ import annotations

import atexit
import os
import time

import torch

from torch_spyre import _C, environment, hardware
from torch_spyre.constants import DEVICE_NAME


def register() -> None:
    """Register the device with PyTorch. Called once per process."""
    _C._set_hardware(**hardware.as_card_arguments())
    if os.environ.get("IS_INDUCTOR_SPAWNED_SUBPROCESS") == "1":
        _C._mark_bad_fork()  # compile workers must not touch the card
    else:
        environment.warn_of_unknown()

    torch.utils.rename_privateuse1_backend(DEVICE_NAME)

    from torch_spyre import logs
    from torch_spyre.device import interface, module, module_to
    from torch_spyre.upstream import compile_fx, install, table

    logs.register()
    interface.register_when_needed()
    compile_fx.register_when_needed()
    install.install_when_imported(table.WITH_THEIR_MODULE)

    torch.nn.modules.module.register_module_parameter_registration_hook(
        module_to.lay_out_registered
    )
    torch._register_device_module(DEVICE_NAME, module.build())
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)

    install.install(table.WITH_THE_DEVICE)
    atexit.register(_let_autograd_threads_finish)


def _let_autograd_threads_finish() -> None:
    """Release the GIL for a moment before the interpreter ends.

    After a backward pass, torch's thread for the device drops Python objects; if the interpreter is
    shutting down by then, the process aborts (torch 2.13). Makes that unlikely, not impossible.
    """
    if _C._is_started() and not _C._in_bad_fork():
        time.sleep(0.02)
