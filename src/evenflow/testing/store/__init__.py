"""The contract suite of stores."""
