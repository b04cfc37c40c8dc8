"""Remote workers: other machines that lend their memory and processors over ssh.

lending.py    on the worker: runs llama.cpp's RPC server in a sandbox, and answers over stdin and stdout
workers.py    on this machine: manages ssh and its heartbeat, the link's speed, and the connected workers
messages.py   the protocol between the two: one JSON object per line
"""
