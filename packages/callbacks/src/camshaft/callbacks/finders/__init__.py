"""Trial steps that leave no trace, and what is found with them."""
