"""Tests of the hooks that the specs name."""
