"""Accelerators: what the driver, the kernel, torch and llama.cpp each see, made into one list.

In come sightings, out come accelerators. Read `accelerators.py` first.
"""
