"""The worker process and its supervision by the front end.

Commands go to the worker through a pipe; events come back. Read `supervisor.py` first (front end), then
`connection.py` (pipe) and `worker.py` (process).
"""
