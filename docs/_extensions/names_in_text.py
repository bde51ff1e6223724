"""Make `names` in docstrings code, with a link where the reference describes what they name.

reStructuredText takes single backquotes for a default role: it is `name` here. A name is looked for as Python would
from where it stands (the class, the module), and then among all public names: `EarlyStopping` is found
from anywhere. The role `hook` leads to the page of a hook, or to the method of the base class that states it.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.nodes import Element, Node
from docutils.parsers.rst.states import Inliner
from public_names import public_names
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def name_role(
    role: str, rawtext: str, text: str, line: int, inliner: Inliner, options: Any = None, content: Any = ()
) -> tuple[list[Node], list[Any]]:
    """Return code, which waits for a link if it is a name."""
    literal = nodes.literal(rawtext, text, classes=["code"])
    if not NAME.fullmatch(text.removesuffix("()")):
        return [literal], []
    env: BuildEnvironment = inliner.document.settings.env
    reference = addnodes.pending_xref(
        rawtext, literal, refdomain="py", reftype="obj", reftarget=text.removesuffix("()"), refwarn=False
    )
    reference["py:module"] = env.ref_context.get("py:module")
    reference["py:class"] = env.ref_context.get("py:class")
    reference["refdoc"] = env.docname
    return [reference], []


def hook_role(
    role: str, rawtext: str, text: str, line: int, inliner: Inliner, options: Any = None, content: Any = ()
) -> tuple[list[Node], list[Any]]:
    """Return the name of a hook, which waits for a link to its page."""
    literal = nodes.literal(rawtext, text, classes=["code"])
    docname = inliner.document.settings.env.docname
    return [addnodes.pending_xref(rawtext, literal, refdomain="", reftype="hook", reftarget=text, refdoc=docname)], []


def find(app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, text: Element) -> Node | None:
    """Return a link for a name that was not found from where it stands."""
    if node.get("reftype") == "hook":
        return _hook_link(app, env, node, text)
    if node.get("refdomain") != "py":
        return None
    first, dot, rest = node["reftarget"].partition(".")
    paths = [one.path for one in public_names() if one.name == first]
    package = ".".join(str(node.get("py:module")).split(".")[:2])
    paths.sort(key=lambda path: not path.startswith(f"{package}."))  # what is nearer, then as packages build on another
    return _link(app, env, node, paths[0] + dot + rest, text) if paths else None


def look_near(app: Sphinx, doctree: nodes.document) -> None:
    """Have types in signatures looked for like other names, not among all attributes and methods that there are."""
    for node in doctree.findall(addnodes.pending_xref):
        node.attributes.pop("refspecific", None)


def _hook_link(app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, text: Element) -> Node | None:
    hook, builder = node["reftarget"], app.builder
    page = f"hooks/{hook}"
    if page in env.found_docs:
        address = builder.get_relative_uri(node["refdoc"], page)
        return nodes.reference("", "", text, internal=True, refuri=address)
    bases = ("ModelHooks", "DataHooks", "CheckpointHooks", "Callback", "StrategyHooks")
    found = (_link(app, env, node, f"camshaft.hooks_core.{base}.{hook}", text) for base in bases)
    return next((link for link in found if link is not None), text)  # type: ignore[arg-type]


def _link(app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, path: str, text: Element) -> Node | None:
    domain = env.domains.python_domain
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", path, node, text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions of this file."""
    app.add_role("name", name_role)
    app.add_role("hook", hook_role)
    app.connect("doctree-read", look_near)
    app.connect("missing-reference", find)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
