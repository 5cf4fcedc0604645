"""Shared by the embedded hub, the container and the SQLite store: opening database files, and waking other
processes."""
