"""Kimi-K3's vision tower, and what brings its patches to the text model."""
