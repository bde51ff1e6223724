"""Earlier names of strategies, accelerators, cluster environments and precisions."""
