"""Collectors of evidence for the preflights: the I/O that `harness.checks` has none of."""
