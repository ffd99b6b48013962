"""The first generation of the language, `neuronxcc.nki` (NKI "Beta 1")."""
