"""The SQLite store: one file for leases, one for progress and effects, both in a folder of one machine."""
