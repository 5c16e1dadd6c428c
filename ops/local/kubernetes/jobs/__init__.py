"""The Job controller, after the real one's recorded behaviour."""
