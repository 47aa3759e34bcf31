"""Passes that change which parameters a module has."""
