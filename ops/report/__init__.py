"""From the ledger to figures, plots and an HTML page. Definitions: docs/goodput.md."""
