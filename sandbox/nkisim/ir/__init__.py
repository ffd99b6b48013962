"""The Program: data structures, wire format, text format, fingerprint."""
