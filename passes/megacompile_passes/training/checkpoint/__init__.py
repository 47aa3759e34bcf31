"""`checkpoint`: which blocks compute their activations again, by name or within a budget."""
