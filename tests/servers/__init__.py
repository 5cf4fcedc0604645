"""Real servers for tests: on loopback, on free ports, in temporary folders, stopped by their process ids."""
