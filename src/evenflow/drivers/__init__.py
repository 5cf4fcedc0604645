"""What a store and a source of the same make share: the driver, its errors in our words, and its connections."""
