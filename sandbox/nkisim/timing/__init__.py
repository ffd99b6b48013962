"""Emulated time."""
