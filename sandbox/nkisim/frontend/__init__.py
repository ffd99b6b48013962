"""The front end: runs a kernel's Python once, without data, and records what it emits."""
