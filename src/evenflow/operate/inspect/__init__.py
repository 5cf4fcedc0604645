"""What a processor tells the outside: typed happenings, and the log."""
