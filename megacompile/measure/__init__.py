"""Measuring: workers, interleaved rounds, statistics, and what the machine can do at best."""
