"""The embedded container as a source: its change feed, range by range."""
