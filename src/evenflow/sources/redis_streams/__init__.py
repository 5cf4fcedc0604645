"""Redis streams as a source."""
