"""What exists in AWS, as CDK stacks and constructs."""
