"""Quantizes 16-bit or 32-bit models to a level, a size or a loss. Read `making.py` first."""
