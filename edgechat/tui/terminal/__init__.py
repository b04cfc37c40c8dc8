"""Between the app and the terminal: the order of keys, signals, sizes, and control characters.

Read `key_order.py` first, then `output_filter.py`.
"""
