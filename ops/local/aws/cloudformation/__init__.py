"""A CloudFormation engine: templates, change sets, stacks, rollback."""
