"""Tools for eager modules: a call that leaves the caller's module alone, how a module's operators
are wired, and its repeated blocks."""
