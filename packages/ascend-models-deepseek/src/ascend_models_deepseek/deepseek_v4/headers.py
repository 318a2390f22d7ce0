"""Checks of a local checkpoint by its headers, which models of all packages share."""

from ascend_ops_core.checkpoint.headers import (
    check_headers,
    known_dtypes,
    read_file,
    read_headers,
)

__all__ = ["check_headers", "known_dtypes", "read_file", "read_headers"]
