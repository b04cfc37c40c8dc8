"""The list of conversations, and searching them."""
