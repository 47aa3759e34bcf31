"""Training data where it is stored: arrays, LMDB databases, and the user's own datasets."""
