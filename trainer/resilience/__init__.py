"""What keeps a run alive: in-process restart, the link to ft_launcher, signals, timeouts, verdicts."""
