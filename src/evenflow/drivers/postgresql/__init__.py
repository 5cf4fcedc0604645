"""What the store and the source on PostgreSQL share: the driver, its errors, its connections."""
