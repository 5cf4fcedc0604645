"""Asking for dead letters to be handled again, or to be dropped, and watching what becomes of them.

The letters are handled by the owners of their partitions, never here: what was asked for goes on when this is
interrupted, and asking again asks nothing twice. Which letters are meant is decided by plain functions; the rest is a
thin shell over the target and the store.
"""
