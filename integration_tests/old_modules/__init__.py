"""Research code as it was written for releases of 2019 to 2022: nothing in these files knows of camshaft."""
