"""Embedded storage that needs no server: a durable partitioned log and a document container, each in a local folder."""
