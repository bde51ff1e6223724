"""Plain values in place of what stands for objects of classes that are not imported."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from torch import Tensor

from camshaft.strategies.checkpoints.plain_values import Keys, name_of
from camshaft.strategies.checkpoints.stand_ins import NamedValues, NumpyArray, Unknown, origin, plain_path

_LEFT_OUT = object()

_NAMESPACES = ("argparse.Namespace", "types.SimpleNamespace", "test_tube.argparse_hopt.TTNamespace")

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


@attrs.define
class PlainContents:
    """Makes nested values plain, and keeps in mind what it had to leave out.

    Namespaces become `NamedValues`, paths text, numbers and arrays of NumPy numbers and tensors, configurations of
    OmegaConf dictionaries and lists. Anything else whose class is not imported is left out of the dictionary that it
    is in; a list with such an item is left out itself.

    Attributes:
        left_out: Names of classes by the keys of the places where they were.
        unresolved: Places of references within configurations that stayed text.
    """

    left_out: dict[Keys, str] = attrs.field(factory=dict)
    unresolved: list[str] = attrs.field(factory=list)
    _done: dict[int, tuple[Any, Any]] = attrs.field(factory=dict, init=False)

    def of(self, value: Any) -> Any:
        """The plain value; dictionaries are changed where they are."""
        plain = self._of(value, ())
        return {} if plain is _LEFT_OUT else plain

    def _of(self, value: Any, keys: Keys) -> Any:
        if isinstance(value, Tensor) or not isinstance(value, (dict, list, tuple, set, type, Unknown)):
            return value
        if id(value) not in self._done:
            if isinstance(value, dict) and type(value) in (dict, OrderedDict):
                self._done[id(value)] = value, value  # it may hold itself
            self._done[id(value)] = value, self._made_plain(value, keys)
        elif self._done[id(value)][1] is _LEFT_OUT:
            self._made_plain(value, keys)  # to tell of this place as well
        return self._done[id(value)][1]

    def _made_plain(self, value: Any, keys: Keys) -> Any:
        if isinstance(value, Unknown):
            return self._known(value, keys)
        if isinstance(value, type):
            return self._leave_out(value.name, keys) if issubclass(value, Unknown) else value
        if isinstance(value, dict):
            return self._mapping(value, keys)
        items = [self._of(item, (*keys, idx)) for idx, item in enumerate(value)]
        if any(item is _LEFT_OUT for item in items):
            return _LEFT_OUT
        return items if type(value) is list else type(value)(items) if type(value) in (tuple, set) else value

    def _mapping(self, value: dict[Any, Any], keys: Keys) -> Any:
        for key in list(value):
            item = self._of(value[key], (*keys, _label(key)))
            if item is _LEFT_OUT:
                del value[key]
                continue
            value[key] = item
            if _label(key) is not key:  # a class, in place of its name; the order stays as far as it matters
                value[_label(key)] = value.pop(key)
        if isinstance(value, OrderedDict):
            attributes = vars(value)
            for name in list(attributes):  # such as the versions of a module's parts, "_metadata"
                item = self._of(attributes[name], (*keys, name))
                if item is _LEFT_OUT:
                    del attributes[name]
                else:
                    attributes[name] = item
            if origin(value) is not None:
                return NamedValues(value)
        return value

    def _known(self, value: Unknown, keys: Keys) -> Any:
        convert = self._conversion(value)
        return self._leave_out(value.name, keys) if convert is None else convert(value, keys)

    def _conversion(self, value: Unknown) -> Callable[[Unknown, Keys], Any] | None:
        name, state = value.name, value.state
        if name in _NAMESPACES and isinstance(state, dict):
            return lambda found, keys: NamedValues(self._mapping(found.state, keys))
        if name.startswith("pathlib.") and name.endswith("Path"):
            return lambda found, keys: plain_path(found)
        if isinstance(value, NumpyArray) and value.tensor() is not None:
            return lambda found, keys: found.tensor() if isinstance(found, NumpyArray) else None
        if name.startswith("omegaconf.") and isinstance(state, dict) and ("_content" in state or "_val" in state):
            return self._configuration
        if name.startswith(("pytorch_lightning.", "lightning.")) and state is None and _is_text(value.args):
            return lambda found, keys: found.args[0]  # its enumerations are of text
        return None

    def _configuration(self, value: Unknown, keys: Keys) -> Any:
        content = _content_of(value)
        plain = self._of(content, keys)
        root = plain
        return self._resolved(plain, root, keys) if _is_root(value) else plain

    def _resolved(self, value: Any, root: Any, keys: Keys) -> Any:
        """Values in place of references such as "${model.width}"; what is said in other ways stays text."""
        if isinstance(value, dict):
            for key in value:
                value[key] = self._resolved(value[key], root, (*keys, key))
        elif isinstance(value, list):
            value[:] = [self._resolved(item, root, (*keys, idx)) for idx, item in enumerate(value)]
        elif isinstance(value, str) and "${" in value:
            found, names = root, _REFERENCE.fullmatch(value)
            for name in names[1].split(".") if names else ():
                found = found.get(name, _LEFT_OUT) if isinstance(found, Mapping) else _LEFT_OUT
            if names is None or found is _LEFT_OUT or (isinstance(found, str) and "${" in found):
                self.unresolved.append(name_of("", keys))
                return value
            return found
        return value

    def _leave_out(self, name: str, keys: Keys) -> Any:
        self.left_out[keys] = name
        return _LEFT_OUT


def _content_of(value: Unknown) -> Any:
    """What a configuration of OmegaConf holds, as dictionaries that read like attributes too, lists and values."""
    state = value.state
    if "_content" not in state:
        return state["_val"]
    content = state["_content"]
    if isinstance(content, dict):
        return NamedValues({_inner(key): _inner(item) for key, item in content.items()})
    return [_inner(item) for item in content] if isinstance(content, list) else content


def _inner(item: Any) -> Any:
    is_node = isinstance(item, Unknown) and item.name.startswith("omegaconf.") and isinstance(item.state, dict)
    return _content_of(item) if is_node and ("_content" in item.state or "_val" in item.state) else item


def _is_text(args: tuple[Any, ...]) -> bool:
    return len(args) == 1 and isinstance(args[0], str)


def _is_root(value: Unknown) -> bool:
    return value.state.get("_parent") is None


def _label(key: Any) -> Any:
    """A key as text where it is a class or an object that is not imported."""
    if isinstance(key, type) and issubclass(key, Unknown):
        return key.name.rpartition(".")[2]
    if isinstance(key, Unknown):
        return str(key.args[0]) if key.args else key.name
    return key
