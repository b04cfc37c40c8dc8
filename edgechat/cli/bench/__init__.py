"""Measuring a model on this machine: speeds, memory, C(n), and every way of speculation side by side.

figures.py  the request and the report
child.py    the measurements, in a process of their own: an engine, and its backend called directly
asking.py   the front end's side of that process
plot.py     plots of the report
quality/    what quantizations lose: `bench --quality`
"""
