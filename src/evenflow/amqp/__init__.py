"""AMQP 1.0: encoding and decoding of types, frames, performatives and messages."""
