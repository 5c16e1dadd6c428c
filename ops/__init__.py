"""What people run: the command line and the AWS and Kubernetes calls behind it."""

import os

# jsii starts a Node process at import; the value is a list of major versions whose end of life is no news.
os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "20")
