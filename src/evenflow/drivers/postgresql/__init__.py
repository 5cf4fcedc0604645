"""Shared by the store and the source on PostgreSQL: options, error translation, connections."""
