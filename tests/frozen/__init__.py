"""Smoke test of the frozen program: it must work without any Python around it."""
