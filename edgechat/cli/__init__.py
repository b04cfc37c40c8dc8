"""Command line: one file per command or group of commands, in `commands/` and `chat/run.py`."""
