"""What lies over the chat: the list of keys, and the palette of commands."""
