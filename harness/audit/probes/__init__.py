"""Collectors of evidence for the preflights: the I/O that `harness.audit` has none of."""
