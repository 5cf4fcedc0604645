"""Shared by stores and sources of the same service: drivers, error translation, and connections."""
