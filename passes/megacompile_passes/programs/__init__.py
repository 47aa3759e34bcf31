"""Tools for exported programs: what they are traced with, their nodes, edits of their graphs, and
export again. Nothing here loads torch before it is called."""
