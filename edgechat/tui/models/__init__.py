"""Models in the app: local and downloadable models, background downloads, and the first run."""
