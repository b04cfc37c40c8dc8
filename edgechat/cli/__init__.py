"""The command line: one file for each command or group of commands, in `commands/` and `chat/run.py`."""
