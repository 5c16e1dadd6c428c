"""What people run: the command line and the AWS and Kubernetes calls behind it."""
