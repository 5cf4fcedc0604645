"""A Kinesis stream as a source. A shard is a partition.

- An empty answer is not the end of the log as long as it says that it is behind the latest record; `until="caught_up"`
  goes by empty batches.
- `latest` is not a position. It becomes the newest record of the last seconds, or a time in which none came.
- Sequence numbers are text: they have more than 64 bits. So `Position.sequence` is None, and lag in events is unknown.
- A request that stores many records may refuse some of them. Records of one key never go into one request together.
- A shard can be read to its end after a split or merge, so its children begin at their beginning.
"""
