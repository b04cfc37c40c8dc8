"""Between the app and the terminal: the order of keys, signals, sizes, control characters, and pictures.

Read `key_order.py` first, then `output_filter.py`; for pictures, `graphics.py`, then `pictures.py`.
"""
