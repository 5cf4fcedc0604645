"""The asyncio shell around the decisions: processor, coordinator, pump."""
