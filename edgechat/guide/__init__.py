"""The guide: its engine, and a search engine for the bundled documentation."""
