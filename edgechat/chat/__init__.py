"""Keep the conversation: turns, and the store that holds them."""
