"""`python -m camshaft.trainer`."""

import sys

from camshaft.trainer.command_line import main

if __name__ == "__main__":
    sys.exit(main())
