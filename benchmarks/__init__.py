"""The measurements behind the figures in RESULTS.md. Each script prints a table and documents its command."""
