"""`cast`: a 16-bit float wherever its range and precision allow. For each form, a policy decides
and a rewriting follows it."""
