"""What torch keeps for each thread, as a new process has it.

NVRx ends an attempt by raising in the main thread, again and again, until that has left the training function. An
exception that arrives while `torch.no_grad()` or `torch.cuda.stream()` is just being left keeps it in force, and
every later attempt of the process fails: `element 0 of tensors does not require grad and does not have a grad_fn`.
"""

from __future__ import annotations

import torch
from torch import _C
from torch.utils._python_dispatch import _pop_mode


def renew_thread_state() -> None:
    """For the calling thread: gradients, torch's modes and hooks, autocast, the current stream."""
    torch.set_grad_enabled(True)
    while _C._len_torch_function_stack():
        _C._pop_torch_function_stack()
    while _C._len_torch_dispatch_stack():
        _pop_mode()
    while _C._autograd._top_saved_tensors_default_hooks(True) is not None:
        _C._autograd._pop_saved_tensors_default_hooks()
    for device_type in ("cpu", "cuda"):
        torch.set_autocast_enabled(device_type, False)
    torch.clear_autocast_cache()
    if torch.cuda.is_initialized():
        torch.cuda.set_stream(torch.cuda.default_stream())
