"""Other libraries' interfaces, on top of evenflow: change an import, keep the program."""
