"""A local Cosmos DB: embedded containers behind the REST interface that official clients of Azure Cosmos DB speak."""
