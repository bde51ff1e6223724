"""The same runs on Lightning and on camshaft, recorded and compared."""
