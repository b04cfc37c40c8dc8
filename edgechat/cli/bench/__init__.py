"""Measuring a model on this machine: speeds, memory, C(n), and every way of speculation side by side.

figures.py  what is asked for and what comes back
child.py    the measurements, in a process of their own: one engine, and the same model below it
asking.py   the front end's side of that process
plot.py     the figures drawn
"""
