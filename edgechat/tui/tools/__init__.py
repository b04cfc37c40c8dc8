"""Tools in the app: the question whether one may be called, and the choice of those that a chat has."""
