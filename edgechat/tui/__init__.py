"""The terminal UI. Textual is imported here and nowhere else."""
