"""The emulated AWS, Kubernetes and nodes behind `--local`."""
