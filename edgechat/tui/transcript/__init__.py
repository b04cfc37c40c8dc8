"""Transcript of a conversation; only the pieces near the screen have widgets."""
