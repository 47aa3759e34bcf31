"""`quantize`: weights in 8 or 4 bits, and by method activations in 8. For each form, sites say what
it is about, libraries or our own code do it, and a survey says what was reached."""
