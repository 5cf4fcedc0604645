"""What a processor tells the outside: typed signals, and the log."""
