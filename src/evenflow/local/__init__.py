"""What the embedded hub and the SQLite store share: opening a database file, and waking other processes."""
