"""What exists in AWS, as CDK constructs and five stacks."""

import os

# Node 20 has reached its end of life; jsii says so in eleven lines each time it starts.
os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "20")
