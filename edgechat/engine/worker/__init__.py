"""The worker process and the front end's side of it.

In come typed commands over a pipe, out come events. Read `supervisor.py` first (the front end), then
`connection.py` (the pipe) and `worker.py` (the process).
"""
