"""Models in the app: local and downloadable models, background downloads, the first run."""
