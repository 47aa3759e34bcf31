"""Passes that store and compute in fewer bits, and measure where that goes wrong."""
