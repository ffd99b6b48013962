"""nkiwright: an agent that writes NKI kernels and proves them."""
