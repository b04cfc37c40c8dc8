"""Estimates the memory use and speed of a load from llama.cpp's own allocator, formulas and earlier loads.

A header and load parameters go in; bytes for each buffer and seconds for each token come out. Read `shape.py`
first, then `dry_run.py` and `speed.py`.
"""
