"""Commands, with their options. Top-level imports are limited to what --help and completion need."""
