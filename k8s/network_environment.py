"""Everything that NCCL, libfabric and EFA are told, in one place."""

from __future__ import annotations

from environments.environment import Environment

NO_SOCKETS_ON = "^lo,docker,veth,eni,pod-id-link"
"""NCCL's bootstrap must not pick loopback, container links or the Pod Identity link (aws-do-eks#54)."""

NEVER_SET = (
    "FI_EFA_ENABLE_SHM_TRANSFER",
    "FI_EFA_SET_CUDA_SYNC_MEMOPS",
    "FI_EFA_USE_DEVICE_RDMA",
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_PROTO",
    "RDMAV_FORK_SAFE",
)
"""What AWS's EFA cheat sheet says to leave alone, or what only old versions needed; a test looks for them."""

# NVRx's requirements for aborting communicators in a living process (its in-process usage guide), and NCCL's
# RAS thread, which crashes when communicators come and go (nccl#1996, nccl#2346).
IN_PROCESS = {
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
}


def network_environment(environment: Environment, *, debug: bool = False) -> dict[str, str]:
    """Variables for a training container.

    The provider and the plug-in are pinned, so that a fall-back to TCP is an error instead of a training that
    is forty times slower (nccl#229). `debug` prints which provider was taken.
    """
    variables = {
        "FI_PROVIDER": "efa",
        "NCCL_NET": "Libfabric",
        "NCCL_SOCKET_IFNAME": NO_SOCKETS_ON,
        "NCCL_DEBUG": "INFO" if debug else "WARN",
    }
    if debug:
        variables["NCCL_DEBUG_SUBSYS"] = "INIT,NET"
    if environment.training.data.num_workers > 0:
        # Forked loader workers would inherit EFA's huge pages and die with OSError 12 (aws-ofi-nccl#69).
        variables["FI_EFA_USE_HUGE_PAGE"] = "0"
    if environment.training.recovery.in_process:
        variables |= IN_PROCESS
    return variables
