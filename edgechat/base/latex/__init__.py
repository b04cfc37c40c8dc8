"""LaTeX formulas as Unicode text. Read `convert.py` first, then `parts.py`."""
