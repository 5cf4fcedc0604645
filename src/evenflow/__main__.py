"""`python -m evenflow` is the program `evenflow`."""

from evenflow.cli import main

if __name__ == "__main__":
    main()
