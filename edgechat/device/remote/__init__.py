"""Remote workers: other machines that lend their memory and processors, reached by ssh.

lending.py    there: llama.cpp's RPC server in a sandbox, and answers over standard input and output
tunnel.py     here: ssh, its heartbeat, and the speed of the link
workers.py    here: the workers of this process, from their addresses to accelerators
messages.py   what both say to each other: one JSON object a line
"""
