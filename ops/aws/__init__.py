"""The AWS calls behind the verbs, by boto3 and the CDK command line."""
