"""evenflow: run N copies of an application over a partitioned stream of events."""
