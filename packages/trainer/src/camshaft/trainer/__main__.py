"""`python -m camshaft.trainer`: the four verbs of a trainer, `plugins`, and commands that other distributions add."""

import sys

from camshaft.trainer.added_commands import OF_OTHERS, added_commands, list_plugins

if __name__ == "__main__":
    command, added = "".join(sys.argv[1:2]), added_commands()
    if command == "plugins":
        sys.exit(list_plugins(sys.argv[2:]))
    if command in added:  # which may need no jsonargparse
        sys.exit(added[command].load()(sys.argv[2:]))
    if command in OF_OTHERS:
        needed = OF_OTHERS[command]
        sys.exit(f"error: `{command}` is a command of {needed}, which is not installed. Run `pip install {needed}`.")
    try:
        from camshaft.trainer.cli.command_line import main
    except ModuleNotFoundError as error:
        if "camshaft-trainer[cli]" not in str(error):
            raise
        sys.exit(f"error: {error}")

    sys.exit(main())
