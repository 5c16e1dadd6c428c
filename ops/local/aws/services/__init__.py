"""AWS's services: ours in place of moto's where moto's cannot be honest, and mends to moto's."""

from __future__ import annotations

import importlib

MODULES = (
    "cloudformation",
    "cloudtrail",
    "ec2",
    "eks",
    "fsx",
    "functions",
    "s3",
    "service_quotas",
)


def install() -> None:
    """Puts everything in place, before the first request."""
    for name in MODULES:
        importlib.import_module(f"{__name__}.{name}").install()


def start_clock() -> None:
    """Lets time pass from now on."""
    importlib.import_module(f"{__name__}.clock").start()
