"""Make a page for each hook of the catalogue, a page for each stage, and the interactive page of all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from hook_arguments import contents_of, docstring_of
from hook_atlas_data import atlas_data
from hook_examples import Example, example_of
from hook_neighbours import Place, places_of
from sphinx.application import Sphinx

from camshaft.hooks_core.dispatch.binding import arguments_of
from camshaft.hooks_core.eras.hooks import EraSpec, hooks_of_eras
from camshaft.hooks_core.grammar.drawing import receivers_in_words
from camshaft.hooks_core.spec import STAGES, Receiver, Stage, kind_in_words

FOLDER = Path("hooks", "_generated")
ATLAS = "hooks/atlas"
SCRIPTS = ("life_cycle.js", "trace_check.js", "example_run.js", "time_line.js", "atlas.js")

STAGE_TITLES: dict[Stage, str] = {
    "setup": "Set-up",
    "data": "Data",
    "fit": "Fit as a whole",
    "train": "Training",
    "validate": "Validation",
    "test": "Test",
    "predict": "Prediction",
    "checkpoint": "Checkpoints",
    "exception": "Exceptions",
}
_KINDS = {
    "event": "It is called on every receiver that implements it.",
    "step": "It is the module's own computation.",
    "override": "It replaces what the loop does by default.",
    "provide": "It returns something that the run needs; the first receiver that implements it is asked.",
    "transform": "It passes a batch through; the first receiver that implements it is asked.",
    "state": "It saves or loads a receiver's state.",
}
_FENCE = "```"


def write_pages(app: Sphinx) -> None:
    """Write the pages that changed, and remove those of hooks that are gone."""
    folder = Path(app.srcdir) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    pages = {f"stage_{stage}.md": stage_page(stage) for stage in STAGES}
    pages |= {f"{spec.name}.md": hook_page(spec) for spec in hooks_of_eras().values()}
    for path in folder.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def stage_page(stage: Stage) -> str:
    """Return the page that lists the hooks of a stage."""
    specs = [spec for spec in hooks_of_eras().values() if spec.stage == stage]
    groups = {
        "Hooks of today": [spec for spec in specs if spec.is_current],
        "Hooks of earlier eras": [spec for spec in specs if not spec.is_current],
    }
    lines = [f"# {STAGE_TITLES[stage]}", ""]
    for title, found in groups.items():
        if found:
            lines += [f"## {title}", "", *(f"[`{spec.name}`]({spec.name}.md)\n: {spec.when}\n" for spec in found)]
    lines += [f"{_FENCE}{{toctree}}", ":hidden:", "", *(spec.name for spec in specs), _FENCE, ""]
    return "\n".join(lines)


def hook_page(spec: EraSpec) -> str:
    """Return the page of a hook."""
    parts = [
        f"(hook-{spec.name})=\n# {spec.name}",
        spec.when,
        _further(spec),
        _facts(spec),
        f"## Signature\n\n{_signatures(spec)}",
        _arguments(spec),
        f"## Order\n\n{_order(spec)}",
        f"## Eras\n\n{_eras(spec)}",
        f"## Example\n\n{_example(example_of(spec))}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _further(spec: EraSpec) -> str:
    """Return the paragraphs of the docstring behind the first, up to its sections."""
    paragraphs = docstring_of(spec.name).split("\n\n")[1:]
    kept = [" ".join(one.split()) for one in paragraphs if not one.startswith(("Args:", "Returns:", "Raises:"))]
    return "\n\n".join(kept)


def _facts(spec: EraSpec) -> str:
    era = None if spec.is_current else spec.eras[-1]
    facts = {
        "Receivers": ", then ".join(receivers_in_words(spec.as_in(era))),
        "Kind": f"{spec.kind}. {_KINDS[spec.kind]}",
        "Return value": spec.returns,
        "Stage": f"[{STAGE_TITLES[spec.stage]}](stage_{spec.stage}.md)",
    }
    if spec.isolated:
        facts["Errors"] = "Every receiver is called even if one before it raises; the first error is raised at the end."
    return "\n".join(f":{name}: {text}" for name, text in facts.items())


def _signatures(spec: EraSpec) -> str:
    era = None if spec.is_current else spec.eras[-1]
    by_signature: dict[str, list[str]] = {}
    for kind in spec.receivers_in(era):
        by_signature.setdefault(signature(spec, kind, era), []).append(_of_kind(kind))
    blocks = [f"# {', '.join(kinds)}\n{text}: ..." for text, kinds in by_signature.items()]
    code = f"{_FENCE}python\n" + "\n\n".join(blocks) + f"\n{_FENCE}"
    optional = spec.optional_in(era)
    if not optional:
        return code
    names = " and ".join(f"`{name}`" for name in optional)
    return f"{code}\n\nA function whose signature names {names} gets {'it' if len(optional) == 1 else 'them'} as well."


def _of_kind(kind: Receiver) -> str:
    return "a callback" if kind is Receiver.CALLBACK else f"the {kind_in_words(kind)}"


def signature(spec: EraSpec, kind: Receiver, era: str | None) -> str:
    """Return the first line of a method that implements a hook."""
    return f"def {spec.name}({', '.join(['self', *arguments_of(spec.as_in(era), kind)])})"


def _arguments(spec: EraSpec) -> str:
    era = None if spec.is_current else spec.eras[-1]
    prefix = arguments_of(spec.as_in(era), Receiver.CALLBACK) if Receiver.CALLBACK in spec.receivers_in(era) else ()
    today = dict.fromkeys((*prefix, *spec.parameters_in(era), *spec.optional_in(era)))
    contents = contents_of(spec)
    items = [f"`{name}`\n: {contents[name]}" for name in today]
    items += [f"`{name}`, in earlier eras\n: {text}" for name, text in contents.items() if name not in today]
    return "\n\n".join(["## Arguments", *items]) if items else ""


def _order(spec: EraSpec) -> str:
    places = places_of(spec)
    if not places:
        return f"It has no fixed place in the order of a verb. {spec.when}"
    era = "" if spec.is_current else f"In era {spec.eras[-1]}. "
    link = f"era={spec.eras[-1]}&amp;" if not spec.is_current else ""
    text = f"{era}Where runs differ, several hooks are named. A verb links to the hook's place in the atlas."
    return "\n".join([text, "", *(_item(spec, place, link) for place in places)])


def _item(spec: EraSpec, place: Place, link: str) -> str:
    runs = f"&amp;with={place.runs}" if place.runs else ""
    verb = f'<a href="../atlas.html#verb={place.verb}&amp;{link}hook={spec.name}{runs}">{place.verb}</a>'
    path = f": {', '.join(place.path)}" if place.path else ""
    before, after = _linked(place.before), _linked(place.after)
    return f"- **{verb}**{path}\n  - right before it: {before}\n  - right after it: {after}"


def _linked(words: tuple[str, ...]) -> str:
    """Return words in which the hooks link to their pages."""
    linked = []
    for one in words:
        how, name, _ = one.split("`")
        linked.append(f"{how}[`{name}`]({name}.md)" if name in hooks_of_eras() else f"{how}{name}")
    return ", ".join(linked)


def _eras(spec: EraSpec) -> str:
    rows = ["| era | receivers | arguments |", "| --- | --- | --- |"]
    for era in spec.eras:
        names = [f"`{name}`" for name in spec.parameters_in(era)] + [f"[`{one}`]" for one in spec.optional_in(era)]
        receivers = ", ".join(kind_in_words(kind) for kind in spec.receivers_in(era))
        rows.append(f"| {era} | {receivers} | {', '.join(names) or 'none'} |")
    return f"{_status(spec)}\n\n" + "\n".join(rows)


def _status(spec: EraSpec) -> str:
    """Return how a hook stands to today's."""
    prefix = " A callback gets `trainer` and `module` before the arguments."
    after = prefix * (spec.kind == "event" and Receiver.CALLBACK in spec.receivers and not spec.precedes_module)
    if spec.is_current:
        return f"Today's loops call it.{after}"
    compat = "No loop of today calls it by itself; [camshaft-compat](../../../packages/compat/README.md)"
    moments = dict.fromkeys([*spec.today, *(name for names in spec.moments.values() for name in names)])
    if not moments:
        return f"{compat} runs the code that has it.{after}"
    where = "right before" if spec.precedes else "right after"
    condition = f", if `{spec.condition}`" if spec.condition else ""
    linked = ", ".join(f"[`{name}`]({name}.md)" for name in moments)
    return f"{compat} calls it {where} {linked}{condition}, as the release did that the code was written for.{after}"


def _example(example: Example) -> str:
    first, last = example.lines
    head = f"{_FENCE}{{code-block}} python\n:emphasize-lines: {first}-{last}\n"
    code = f"{head}\n{example.code}{_FENCE}"
    if example.reason:
        return f"{example.reason}\n\n{code}"
    return f"{code}\n\nIt prints:\n\n{_FENCE}text\n{example.output().rstrip()}\n{_FENCE}"


class HookAtlas(Directive):
    """The interactive page: an empty place that its scripts fill, and the data that they read."""

    def run(self) -> list[nodes.Node]:
        data = json.dumps(atlas_data(), separators=(",", ":")).replace("</", "<\\/")
        html = f'<div id="atlas"></div>\n<script type="application/json" id="atlas-data">{data}</script>'
        return [nodes.raw("", html, format="html")]


def add_scripts(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Add scripts and style to the interactive page alone."""
    if pagename == ATLAS:
        app.add_css_file("atlas/atlas.css")
        for name in SCRIPTS:
            app.add_js_file(f"atlas/{name}", defer="defer")


def outdated(*arguments: Any) -> list[str]:
    """Return the interactive page: its data may have changed though its source has not."""
    return [ATLAS]


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions of this file."""
    app.add_directive("hook-atlas", HookAtlas)
    app.connect("builder-inited", write_pages)
    app.connect("env-get-outdated", outdated)
    app.connect("html-page-context", add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
