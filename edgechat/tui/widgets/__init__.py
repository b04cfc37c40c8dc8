"""Widgets that several screens share. Text fields show control characters, which never reach the terminal."""
