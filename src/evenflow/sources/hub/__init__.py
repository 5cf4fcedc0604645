"""The embedded hub as a source."""
