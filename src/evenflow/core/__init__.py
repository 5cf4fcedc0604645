"""Pure decisions: who is alive, who owns what, when to checkpoint. No I/O, no clock, no chance, no logging."""
