"""The report as data, and its views."""
