"""Settings screen: every field of settings.toml, explained and changed in place."""
