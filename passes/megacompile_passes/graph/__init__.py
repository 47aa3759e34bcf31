"""Passes that make a graph smaller and leave what it computes as it is."""
