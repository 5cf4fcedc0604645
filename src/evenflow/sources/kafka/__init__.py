"""A Kafka topic as a source."""
