"""Programs that show evenflow at work. Run them from the root of a clone."""
