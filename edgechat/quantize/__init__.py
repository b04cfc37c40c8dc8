"""Quantizes models in 16 or 32 bits: to a level, a size or a loss. Read `making.py` first."""
