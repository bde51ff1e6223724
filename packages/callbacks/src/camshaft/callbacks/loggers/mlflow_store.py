"""Where MLflow keeps its runs."""

from __future__ import annotations

from importlib.util import find_spec
from urllib.parse import unquote, urlparse

_DATABASES = ("sqlite", "mysql", "postgresql", "mssql")


def local_path(uri: str) -> str | None:
    """The path that a URI stands for; None if it is not of this machine's files."""
    parts = urlparse(uri)
    if parts.scheme == "":
        return uri
    return unquote(parts.path) if parts.scheme == "file" and parts.netloc in ("", "localhost") else None


def check_database(uri: str, where: str) -> None:
    """Raise `ModuleNotFoundError` if a URI stands for a database, and what MLflow needs for one is not installed."""
    if urlparse(uri).scheme.partition("+")[0] not in _DATABASES:
        return
    for library in ("sqlalchemy", "alembic"):
        if find_spec(library) is None:
            action = "Install it: `pip install sqlalchemy alembic`, or leave `tracking_uri` out to write files."
            raise ModuleNotFoundError(
                f"{where}(tracking_uri={uri!r}) needs `{library}`, which is not installed. {action}", name=library
            )
