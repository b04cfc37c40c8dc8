"""The guide: what it knows, and what the documentation that ships adds."""
