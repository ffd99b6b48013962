"""On-chip and off-chip memory: partitions, banks, lifetimes, capacity, placement."""
