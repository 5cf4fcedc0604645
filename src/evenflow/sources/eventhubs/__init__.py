"""Azure Event Hubs as a source."""
