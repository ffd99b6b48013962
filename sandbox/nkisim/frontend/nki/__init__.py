"""The names that kernels import: `nki`, `nki.language`, `nki.isa` and their small companions."""
