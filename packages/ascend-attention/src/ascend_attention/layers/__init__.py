"""Modules built of this package's operators; none of them imports vllm."""
