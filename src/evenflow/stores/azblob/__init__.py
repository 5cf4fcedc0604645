"""The Azure Blob store, in the layout of Azure's own processors for Event Hubs."""
