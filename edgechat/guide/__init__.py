"""The guide: its engine, and search in the bundled documentation."""
