"""The smoke test of the frozen program: nothing of Python is around it, and everything has to work."""
