"""What each path does, by protocol: a body in, and an answer out. `app.py` has the list of paths."""
