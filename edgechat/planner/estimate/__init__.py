"""Estimates how much memory a load needs and how fast it is.

The figures come from llama.cpp's own allocator, from formulas, and from earlier loads. A header and load
parameters go in; bytes for each buffer and seconds for each token come out. Read `shape.py` first, then
`dry_run.py` and `speed.py`.
"""
