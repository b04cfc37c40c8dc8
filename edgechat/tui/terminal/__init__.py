"""Between the app and the terminal: order of keys, signals, sizes, control characters, pictures.

Read `key_order.py` first, then `window.py`.
"""
