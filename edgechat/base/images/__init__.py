"""Images from users: untrusted files, decoded in a child process and stored under their hashes."""
