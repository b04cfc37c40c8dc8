"""Conversations: their turns, the store that holds them, and the replies that are added to them."""
