"""Containers that behave as those of transformers do: `ModelOutput` and `BatchEncoding`."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from dataclasses import dataclass, fields
from typing import Any


class ModelOutput(OrderedDict[str, Any]):
    """Fields that are not None are keys as well; whatever else changes a dictionary is refused."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise Exception(f"You cannot change a {type(self).__name__} in this way.")

    __delitem__ = setdefault = pop = update = _refuse  # type: ignore[assignment]

    def __getitem__(self, key: Any) -> Any:
        return dict(self.items())[key] if isinstance(key, str) else tuple(self.values())[key]

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __reduce__(self) -> Any:
        callable_, _, *rest = super().__reduce__()
        return callable_, tuple(getattr(self, field.name) for field in fields(self)), *rest  # type: ignore[arg-type]


@dataclass
class Prediction(ModelOutput):
    loss: Any = None
    logits: Any = None
    hidden_states: Any = None


class BatchEncoding(UserDict[str, Any]):
    """Its data are attributes as well, and it keeps what the tokenizer found beside them."""

    def __init__(self, data: Any = None, encoding: Any = None) -> None:
        super().__init__(data)
        self._encodings = encoding

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: Any) -> Any:
        return self.data[key] if isinstance(key, str) else self._encodings[key]

    def to(self, device: Any) -> BatchEncoding:
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self
