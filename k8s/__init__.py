"""What runs in the cluster, as cdk8s charts."""
