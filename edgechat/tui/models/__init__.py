"""Models in the app: what is here and what could be, pulls in the background, the first run."""
