"""What a load takes and how fast it is: by llama.cpp's own allocator, by formula, and by what was learnt.

Input: a header and load parameters; output: bytes for each buffer and seconds for each token. Read
`shape.py` first, then `dry_run.py` and `speed.py`.
"""
