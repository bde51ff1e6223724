"""Show figures of the benchmarks: the directive `benchmark-table`.

    ```{benchmark-table} overhead
    :rows: train everything
    :columns: camshaft lightning
    :quartiles:
    ```

The table is made from the file that the benchmark wrote into `benchmarks/measured/`, with a line that says when, where
and of which commit it was measured. So no figure is typed into a page.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


class BenchmarkTable(SphinxDirective):
    """The table of one benchmark, or the chosen rows and columns of it."""

    required_arguments = 1
    option_spec: ClassVar[Any] = {
        "rows": str.split,
        "columns": str.split,
        "quartiles": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the table; where there are no figures yet, a note that says how to measure them."""
        from figures import markdown_of, not_measured, path_of

        [benchmark] = self.arguments
        self.env.note_dependency(str(path_of(benchmark)))
        if not path_of(benchmark).exists():
            return self.parse_text_to_nodes(f":::{{note}}\n{not_measured(benchmark)}\n:::")
        try:
            text = markdown_of(
                benchmark,
                self.options.get("columns"),
                self.options.get("rows"),
                quartiles="quartiles" in self.options,
            )
        except KeyError as error:
            raise self.error(f"{error} is no row or column of {benchmark}. Measure it, or leave it out.") from error
        return self.parse_text_to_nodes(text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    sys.path.insert(0, str(BENCHMARKS))
    app.add_directive("benchmark-table", BenchmarkTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
