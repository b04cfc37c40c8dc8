"""Estimates the memory and speed of a load, by llama.cpp's own allocator, by formula, and from earlier loads.

A header and load parameters go in; bytes for each buffer and seconds for each token come out. Read `shape.py`
first, then `dry_run.py` and `speed.py`.
"""
