"""Local services for official clients: Event Hubs and Cosmos DB."""
