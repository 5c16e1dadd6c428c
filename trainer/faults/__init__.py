"""Faults as data (schema) and their deterministic injection (inject)."""
