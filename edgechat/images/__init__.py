"""Images as users give them: untrusted files, kept by their contents, and decoded in a process of their own."""
