"""A JetStream stream of NATS as a source."""
