"""The object store: groups in S3 and other buckets, by conditional puts."""
