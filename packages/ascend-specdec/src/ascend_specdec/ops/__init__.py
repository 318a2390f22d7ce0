"""Operator families, one folder each."""
