"""NVRx's ft_launcher, and beside it what it lacks: `python -m trainer.ft_launcher <its command line>`."""

from __future__ import annotations

import sys

from nvidia_resiliency_ext.fault_tolerance.launcher import main

from trainer.resilience import gpu_memory, monitors, orphans

if __name__ == "__main__":
    monitors.outlive_ranks_without_a_beat()
    gpu_memory.watch()
    orphans.watch(orphans.Size.of(sys.argv[1:]))
    main()
