"""The list of conversations, and the search through them."""
