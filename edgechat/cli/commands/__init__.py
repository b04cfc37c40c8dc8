"""Commands and their options. Modules import at the top only what --help and completion need."""
