"""A small Kubernetes on this machine."""
