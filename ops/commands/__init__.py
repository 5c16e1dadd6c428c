"""The verbs, a module per group. Each parses its options and calls what does the work."""
