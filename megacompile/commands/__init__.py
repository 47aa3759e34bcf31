"""What a person types: one file for each command, and what only that command needs."""

from megacompile.commands.cli import main

__all__ = ["main"]
