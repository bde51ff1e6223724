"""The command line: `python -m camshaft.strategies consolidate SRC DST`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from camshaft.strategies.checkpoints.contents import CheckpointError
from camshaft.strategies.checkpoints.safetensors_files import consolidate_checkpoint

_EXIT_ERROR = 2

_CONSOLIDATE = """\
Turn a checkpoint into one file.

SRC is the directory that a sharded strategy saved, or a checkpoint file. DST becomes a checkpoint file
with everything in it, which any strategy reads. The suffix .safetensors chooses that format:

  consolidate run/last.ckpt model.ckpt          everything, in one file
  consolidate run/last.ckpt model.safetensors   the weights (state_dict) only
  consolidate model.safetensors model.ckpt      a checkpoint with these weights and nothing else

With --max-shard-bytes 5000000000 larger weights become model-00001-of-00003.safetensors, ... and
model.safetensors.index.json, as libraries of Hugging Face read them. SRC may be such an index.
With --prefix model. only weights with such names are written, without it: those of the part `self.model`.

It runs in one process and needs memory for the whole checkpoint. DST is written to a temporary file and
renamed, so that it is complete or absent; an existing file is replaced."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code: 0, or 2 if the command failed.

    Args:
        arguments: The arguments; those of this process by default.
    """
    parser = argparse.ArgumentParser(prog="python -m camshaft.strategies", description="Checkpoints on disk.")
    commands = parser.add_subparsers(required=True, metavar="command")
    consolidating = commands.add_parser(
        "consolidate",
        help="turn a checkpoint into one file, also to and from safetensors",
        description=_CONSOLIDATE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    consolidating.add_argument("source", metavar="SRC", help="a checkpoint: directory, file, or .safetensors")
    consolidating.add_argument("target", metavar="DST", help="the file to write")
    size = "size of a .safetensors file above which the weights are split"
    consolidating.add_argument("--max-shard-bytes", metavar="N", type=int, help=size)
    consolidating.add_argument(
        "--prefix", default="", help="beginning of the names of weights to write, left out there"
    )
    parsed = parser.parse_args(arguments)
    try:
        consolidate_checkpoint(parsed.source, parsed.target, parsed.max_shard_bytes, parsed.prefix)
    except (CheckpointError, OSError, ValueError, TypeError, ModuleNotFoundError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return _EXIT_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
