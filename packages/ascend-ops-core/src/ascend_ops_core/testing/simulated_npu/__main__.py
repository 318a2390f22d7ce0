"""Run a program on the simulated NPU.

``python -m ascend_ops_core.testing.simulated_npu [options] SCRIPT [arguments]``, or ``-m MODULE``
in place of SCRIPT. The options also go into ``ASCEND_SIMULATED_NPU``, which processes that the
program starts inherit. A forked one has the device already; a fresh one calls
``simulated_npu.install_from_environment()`` before it touches the device, as a plugin's entry
point can. Where a torch_npu is installed, set ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` before.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.simulated_npu import ENVIRONMENT, install_from_environment


def main() -> int:
    """Install the device and run the program in this process."""
    parser = argparse.ArgumentParser(
        prog="python -m ascend_ops_core.testing.simulated_npu",
        description="Run a program on the simulated NPU.",
    )
    parser.add_argument("--family", default="A3", help="A2, A3, A5 or 310P")
    parser.add_argument("--devices", type=int, default=1, help="number of devices")
    parser.add_argument("--kernels", default="interpreter", help="interpreter or reference")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("program", help="script, or module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="for the program")
    options = parser.parse_args()
    # For the processes that the program starts; Triton reads its own when a kernel is defined.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if options.kernels == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"
    os.environ[ENVIRONMENT] = (
        f"family={options.family},devices={options.devices},kernels={options.kernels}"
    )
    try:
        install_from_environment()
    except InvalidInputError as error:
        print(error, file=sys.stderr)
        return 1
    sys.argv = [options.program, *options.arguments]
    if options.module:
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(options.program, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
