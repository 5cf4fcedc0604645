"""`python -m examples.home_security`: see command.py."""

import signal
import sys

# Ctrl-C during the imports ends it at once: there is nothing to clean up yet.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from examples.home_security.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
