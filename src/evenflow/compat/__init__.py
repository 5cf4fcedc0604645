"""For applications written against other libraries: what they know, with evenflow behind it."""
