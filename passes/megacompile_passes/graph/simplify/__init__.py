"""`simplify`: what the outputs don't need goes, and so does what changes nothing."""
