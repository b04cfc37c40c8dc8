"""The engine room: what the engine does and knows, for who wants to see it."""
