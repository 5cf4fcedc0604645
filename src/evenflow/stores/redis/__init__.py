"""The Redis store: each request is one Lua script."""
