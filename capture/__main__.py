"""``python -m capture`` is ``weir``."""

import sys

from capture.cli import main

if __name__ == "__main__":
    sys.exit(main())
