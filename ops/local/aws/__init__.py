"""An emulated AWS on this machine: moto's services behind our own CloudFormation engine."""
