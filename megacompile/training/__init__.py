"""Training: a recipe is data that says what passes decided; a step is what it makes of a model."""
