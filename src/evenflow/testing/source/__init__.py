"""The contract suite of sources."""
