"""``python -m capture`` is ``weir``."""

import sys

from capture.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
