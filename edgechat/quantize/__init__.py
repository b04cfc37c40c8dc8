"""Quantizes 16-bit or 32-bit models to a given level, target size or maximum loss. Read `making.py` first."""
