"""The list of conversations, with search."""
