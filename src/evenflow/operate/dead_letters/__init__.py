"""Dead letters: their encoding, the targets that store them, counting them, and redriving them."""
