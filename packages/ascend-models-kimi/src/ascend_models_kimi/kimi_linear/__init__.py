"""Kimi-Linear, and the text model of Kimi-K3, which is Kimi-Linear with more of everything."""
