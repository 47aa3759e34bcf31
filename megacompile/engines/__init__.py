"""Backends: one file each; `registry.BACKENDS` is their table."""
