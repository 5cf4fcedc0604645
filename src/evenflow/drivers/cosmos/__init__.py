"""What the store and the source on Cosmos DB share: the client, addresses, positions."""
