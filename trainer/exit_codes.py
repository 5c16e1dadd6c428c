"""Exit codes of the training container, read by the Job's podFailurePolicy (k8s/training_job.py)."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a training pod ends. Ranks' own codes do not pass ft_launcher: `trainer.launch` sets these."""

    TARGET_REACHED = 0
    """The completion record says that the target step is reached; completes the Job's index for ever."""
    FAILED = 1
    """Anything else: counted, the pod is replaced after the Job's back-off."""
    SAVES_FAIL = 90
    """Saves keep failing: the Job fails, since training on would only grow what a fault loses."""
    BAD_NODE = 91
    """This node must not train: the pod is replaced elsewhere."""
    PLANNED_STOP = 92
    """State saved, resumable; not counted."""
    NO_PROGRESS = 93
    """The same fault again and again: the Job fails and the GPUs are freed."""


JOB_FAILING = (ExitCode.SAVES_FAIL, ExitCode.NO_PROGRESS)
"""Sorted, as Kubernetes demands of `onExitCodes.values`."""
JOB_IGNORED = (ExitCode.PLANNED_STOP,)
