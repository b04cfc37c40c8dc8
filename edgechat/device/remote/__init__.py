"""Remote workers: other machines that lend their memory and processors over ssh.

lending.py    there: llama.cpp's RPC server in a sandbox, and answers over standard input and output
workers.py    here: ssh with its heartbeat and the speed of the link, and the connected workers
messages.py   the protocol between them: one JSON object per line
"""
