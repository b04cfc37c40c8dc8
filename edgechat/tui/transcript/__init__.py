"""A conversation's transcript; only pieces near the screen have widgets."""
