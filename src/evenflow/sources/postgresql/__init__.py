"""The changes of a PostgreSQL table as a source."""
