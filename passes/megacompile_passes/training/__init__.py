"""Passes that edit a training step: its memory, its precision, its compiler, its processes."""
