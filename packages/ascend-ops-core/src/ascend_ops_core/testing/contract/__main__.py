"""Report on a wheel: ``python -m ascend_ops_core.testing.contract [--wheel FILE] [--family A3]``.

One process checks one wheel, since operators are registered once. The report is JSON: version,
numbers of operators with and without meta kernels, and their names.
"""

from __future__ import annotations

import argparse
import json
import sys

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.contract import install


def main() -> int:
    """Print the report and return 0, or say why there is none and return 1."""
    parser = argparse.ArgumentParser(prog="python -m ascend_ops_core.testing.contract")
    parser.add_argument("--wheel", help="a .whl file or a folder with the unpacked wheel")
    parser.add_argument("--family", default="A3", help="device family: A2, A3 or A5")
    options = parser.parse_args()
    try:
        contract = install(options.wheel, options.family)
    except InvalidInputError as error:
        print(error, file=sys.stderr)
        return 1
    report = {
        "version": contract.version,
        "operators": len(contract.schemas),
        "with_meta": len(contract.with_meta),
        "without_meta": contract.without_meta,
        "refused": contract.refused,
        "foreign_metas": contract.foreign_metas,
        "orphan_metas": contract.orphan_metas,
    }
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
