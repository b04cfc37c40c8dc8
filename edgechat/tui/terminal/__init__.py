"""Everything between the app and the terminal: key order, signals, sizes, control characters, pictures.

Read `key_order.py` first, then `window.py`.
"""
