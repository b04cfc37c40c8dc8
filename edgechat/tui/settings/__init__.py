"""Settings screen: every setting in settings.toml, explained and editable in place."""
