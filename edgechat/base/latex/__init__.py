"""LaTeX formulas as Unicode text. Read `convert.py` first, then `reader.py`."""
