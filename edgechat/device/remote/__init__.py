"""Remote workers: other machines that lend their memory and processors over ssh.

lending.py    on the worker: llama.cpp's RPC server in a sandbox, and answers over standard input and output
workers.py    on this machine: ssh with its heartbeat, the link's speed, and the connected workers
messages.py   the protocol between them: one JSON object per line
"""
