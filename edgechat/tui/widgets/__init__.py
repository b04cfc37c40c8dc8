"""Widgets shared by several screens. Text fields show control characters instead of printing them."""
