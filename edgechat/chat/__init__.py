"""Conversations: their turns, the store that holds them, and the generation of replies."""
