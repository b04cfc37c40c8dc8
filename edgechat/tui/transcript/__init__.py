"""The transcript: what was said, of which only what is near the screen is a widget."""
