"""Tools for tests of layers over ranks and of quantised checkpoints.

Nothing outside of tests imports them; checkpoints need safetensors (extra ``test``).
"""
