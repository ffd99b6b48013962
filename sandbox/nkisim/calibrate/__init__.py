"""Fits the machine's constants on measured kernels, and reports how far to trust them."""
