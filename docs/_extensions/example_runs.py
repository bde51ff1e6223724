"""Show what a program of examples/ prints and draws: the directive `example-run`.

    ```{example-run} find_the_spike.py
    :picture: spike.png
    :arguments: --plot spike.png
    :alt: Loss and norms of outputs
    ```

The program runs when the page is read, in an empty folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

EXAMPLES = Path(__file__).parents[2] / "examples"
PICTURES = Path(__file__).parents[1] / "_static" / "_generated"
TIMEOUT_SECONDS = 300


class ExampleRun(SphinxDirective):
    """Run a program, and show its output and its picture."""

    required_arguments = 1
    option_spec: ClassVar[Any] = {"arguments": str.split, "picture": directives.path, "alt": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Return a literal block, and the picture above it."""
        program = EXAMPLES / self.arguments[0]
        self.env.note_dependency(str(program))
        picture = self.options.get("picture")
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(program), *self.options.get("arguments", ())]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
            if done.returncode != 0:
                raise self.error(f"{program.name} failed:\n{done.stderr}")
            output = nodes.literal_block(done.stdout, done.stdout, language="text")
            if picture is None:
                return [output]
            PICTURES.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(folder) / picture, PICTURES / picture)
        here = Path(self.env.doc2path(self.env.docname)).parent
        uri = Path(os.path.relpath(PICTURES / picture, here)).as_posix()
        return [nodes.image(uri=uri, alt=self.options.get("alt", program.name)), output]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("example-run", ExampleRun)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
