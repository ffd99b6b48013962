"""Help for testing kernels: the adapter for public kernel collections."""
