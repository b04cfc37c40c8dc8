"""Between the app and the terminal: the order of keys, signals, and what may never be written to it.

Read `key_order.py` first, then `output_filter.py`.
"""
