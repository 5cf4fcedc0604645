"""Dead letters: what a log of dead letters and verdicts says, how records are written, and where they can be kept."""
