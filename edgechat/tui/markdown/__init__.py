"""Markdown rendered as lines of text: parsed once, laid out at any width, cheap to extend."""
