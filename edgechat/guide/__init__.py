"""The guide: its engine, and search in the shipped documentation."""
