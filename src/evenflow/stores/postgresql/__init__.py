"""The PostgreSQL store: each request is one call of a function in a schema of its own."""
