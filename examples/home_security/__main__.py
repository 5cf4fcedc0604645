"""`python -m examples.home_security`: see command.py."""

import signal
import sys

# Ctrl-C while all else is still being read ends it at once: nothing has been made yet that would have to be ended.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from examples.home_security.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
