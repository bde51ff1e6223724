"""The import names of earlier code, each standing for ours, in processes that ask."""
