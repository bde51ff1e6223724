"""The import names of code that was written for earlier releases, each standing for ours, in processes that ask."""

from camshaft.trainer.import_names.installing import aliases_installed, install_aliases, remove_aliases

__all__ = ["aliases_installed", "install_aliases", "remove_aliases"]
