"""The worker process, and how the front end supervises it.

Commands are sent to the worker through a pipe, and events are sent back. Read `supervisor.py` first (front
end), then `connection.py` (pipe) and `worker.py` (process).
"""
