"""What a GPU node does before kubelet starts: MIME parts, as managed node groups demand."""

from __future__ import annotations

from environments.environment import Environment
from environments.instance_types import HUGE_PAGES_2MIB

BOUNDARY = "steadfast"

# nodeadm starts containerd and kubelet only after cloud-init has run this, so limits hold from the first pod on.
_PREPARE = f"""\
#!/bin/bash
set -euo pipefail

# EFA pins memory, and a non-root container keeps no IPC_LOCK: containerd's own limit must allow it.
install -d /etc/systemd/system/containerd.service.d
cat > /etc/systemd/system/containerd.service.d/10-memlock.conf <<'CONF'
[Service]
LimitMEMLOCK=infinity
CONF
systemctl daemon-reload

# As many as pods request; a node without any leaves them Pending.
echo 'vm.nr_hugepages = {HUGE_PAGES_2MIB}' > /etc/sysctl.d/90-efa-huge-pages.conf
sysctl -p /etc/sysctl.d/90-efa-huge-pages.conf

# From the distribution's repository, which is in S3 and so behind the gateway endpoint too.
for attempt in 1 2 3 4 5; do
  dnf install -y lustre-client && break
  sleep $((attempt * 5))
done
rpm -q lustre-client
"""

_LUSTRE_OVER_EFA = """\

# Lustre over EFA: AWS's own set-up, from the image where it has it.
setup=/etc/eks/configure-efa-fsx-lustre-client
if [ ! -x "$setup/setup.sh" ]; then
  archive=configure-efa-fsx-lustre-client.zip
  curl -sfL --retry 5 -o "/tmp/$archive" "https://docs.aws.amazon.com/fsx/latest/LustreGuide/samples/$archive"
  python3 -m zipfile -e "/tmp/$archive" /opt
  setup=/opt/configure-efa-fsx-lustre-client
fi
(cd "$setup" && bash ./setup.sh)
"""


def gpu_user_data(env: Environment) -> str:
    """The whole MIME document, in plain text."""
    script = _PREPARE + (_LUSTRE_OVER_EFA if env.file_system.efa else "")
    parts = (("application/node.eks.aws", _node_config(env)), ("text/x-shellscript", script))
    body = "".join(f"--{BOUNDARY}\nContent-Type: {kind}\n\n{text}\n" for kind, text in parts)
    return f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="{BOUNDARY}"\n\n{body}--{BOUNDARY}--\n'


def _node_config(env: Environment) -> str:
    """EKS adds the cluster's own values. Local disks hold images and pods: a small root fills (eks-ami#985)."""
    return f"""\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0
  kubelet:
    config:
      maxPods: {env.instance.max_pods(env.interfaces)}
"""
