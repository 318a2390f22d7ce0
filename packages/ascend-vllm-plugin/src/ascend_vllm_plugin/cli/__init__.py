"""The command line `ascend-vllm`. `server.VllmServer` is usable on its own."""

from ascend_vllm_plugin.cli.app import main

__all__ = ["main"]
