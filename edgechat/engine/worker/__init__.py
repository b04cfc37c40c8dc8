"""The worker process and the front end's side of it.

Commands come in over a pipe, events go out. Read `supervisor.py` first (the front end), then
`connection.py` (the pipe) and `worker.py` (the process).
"""
