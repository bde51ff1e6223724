"""`python -m camshaft.trainer`: the four verbs of a trainer, the comparison of runs, and the replay of a step."""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["compare"]:  # which needs no jsonargparse
        from camshaft.trainer.cli.compare_command import main as compare

        sys.exit(compare(sys.argv[2:]))
    is_of_run = any(word.startswith(("--to-step", "--to_step")) for word in sys.argv)  # which a capture has not
    if sys.argv[1:2] == ["replay"] and not is_of_run:
        from camshaft.trainer.cli.replay_command import main as replay

        sys.exit(replay(sys.argv[2:]))
    try:
        from camshaft.trainer.cli.command_line import main
    except ModuleNotFoundError as error:
        if "camshaft-trainer[cli]" not in str(error):
            raise
        sys.exit(f"error: {error}")

    sys.exit(main())
