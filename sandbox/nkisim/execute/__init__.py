"""Validates and executes Programs on values."""
