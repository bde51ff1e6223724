"""`python -m camshaft.trainer`: the four verbs of a trainer."""

import sys

if __name__ == "__main__":
    from camshaft.trainer.cli.command_line import main

    sys.exit(main())
