"""The lease container of Cosmos DB, in the layouts of the change feed processors of .NET and Java."""
