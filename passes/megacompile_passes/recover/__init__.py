"""`recover`: training until the answers are right again, in float32 or with rounded values."""
