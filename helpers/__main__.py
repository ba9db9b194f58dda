"""`python -m helpers …`: the command line."""

import sys

from helpers.apps.cli import main

if __name__ == "__main__":
    sys.exit(main())
