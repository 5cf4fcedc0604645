"""A local Event Hubs for official clients: its AMQP protocol on top of the embedded hub."""
