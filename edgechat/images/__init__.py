"""Images as users give them: untrusted files, kept by content, and decoded in a process of their own."""
