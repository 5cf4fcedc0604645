"""Shared by the store and the source on Cosmos DB: the client, its options, positions."""
