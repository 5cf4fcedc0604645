"""Event Hubs' service of AMQP over the embedded hub: a local Event Hubs for official clients."""
