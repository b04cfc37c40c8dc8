"""Search in the user's documents."""
