"""Images as users give them: untrusted files, decoded in a process of their own, kept by their contents."""
