"""megacompile: one spec in, the fastest right artifact and a believable report out."""

__version__ = "0.1.0"
