"""Interfaces of other libraries, implemented with evenflow, for applications that were written against them."""
