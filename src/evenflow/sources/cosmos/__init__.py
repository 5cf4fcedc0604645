"""The change feed of Azure Cosmos DB as a source."""
