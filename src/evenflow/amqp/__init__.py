"""AMQP 1.0, and Event Hubs' dialect of it over the embedded hub: official clients of Event Hubs talk to a local one."""
