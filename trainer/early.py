"""Imported before everything else of a rank: its imports are most of what a restart of the process takes.

The garbage collector looks at half a million objects again and again while torch is imported, in vain: a fifth of
the time. Afterwards they are frozen, which also spares them to the collection after each in-process restart.
"""

from __future__ import annotations

import gc
import importlib

HEAVY = ("torch", "torch.distributed.fsdp", "torch._dynamo", "nvidia_resiliency_ext.inprocess")
"""`fully_shard` would import torch._dynamo when it is first called."""


def import_quickly() -> None:
    """Import what is HEAVY without collecting, and freeze it."""
    gc.disable()
    try:
        for name in HEAVY:
            importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


import_quickly()
