"""Imports every module of installed packages: python -I .ci/import_all.py camshaft.hooks_core camshaft.loops ...

A module that needs a library which is not installed, such as an optional logger's, is passed over.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys


def import_all(name: str) -> int:
    """Import the package `name` and every module in it, and return how many. Raises whatever one of them raises."""
    package = importlib.import_module(name)
    num_imported = 1
    for found in pkgutil.walk_packages(package.__path__, f"{name}."):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] == "camshaft":
                raise
        else:
            num_imported += 1
    return num_imported


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print(f"{each}: {import_all(each)} modules imported")
