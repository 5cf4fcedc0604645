"""A Kinesis stream as a source."""
