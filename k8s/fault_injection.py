"""What a campaign adds to a run: the faults, as the container reads them."""

from __future__ import annotations

from typing import Any

from k8s.containers import variable
from k8s.run_spec import RunSpec
from trainer.faults.schema import dump_faults


def fault_variables(run: RunSpec) -> list[dict[str, Any]]:
    """STEADFAST_FAULTS, only when there are any."""
    if not run.faults:
        return []
    return [variable("STEADFAST_FAULTS", dump_faults(list(run.faults)))]
