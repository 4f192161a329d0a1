"""Preflights and gates: small functions from evidence to problems."""
