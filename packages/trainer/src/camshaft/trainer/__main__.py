"""`python -m camshaft.trainer`: the four verbs of a trainer, and `run` for files of earlier releases."""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        from camshaft.trainer.earlier.script import main as run

        sys.exit(run(sys.argv[2:]))
    from camshaft.trainer.command_line import main

    sys.exit(main())
