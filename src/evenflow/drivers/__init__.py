"""What stores, and sources of the same make, share: drivers, their errors in our words, and their connections."""
