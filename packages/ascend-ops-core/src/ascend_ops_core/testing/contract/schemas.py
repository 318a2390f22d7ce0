"""Operator schemas and numeric dtype codes of a torch_npu wheel."""

from __future__ import annotations

import re

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.contract.wheel import ACL_HEADER, SCHEMAS, WheelFiles

_SECTION = re.compile(r"^([a-z_]+):")
_FUNCTION = re.compile(r"^(?:- |  )func: (.+)$")

# Name that torch_npu gives a dtype which torch may not have -> name in CANN's enumeration.
_DTYPE_NAMES = {
    "int4": "INT4",
    "hifloat8": "HIFLOAT8",
    "float8_e5m2": "FLOAT8_E5M2",
    "float8_e4m3fn": "FLOAT8_E4M3FN",
    "float8_e8m0fnu": "FLOAT8_E8M0",
    "float6_e3m2fn": "FLOAT6_E3M2",
    "float6_e2m3fn": "FLOAT6_E2M3",
    "float4_e2m1": "FLOAT4_E2M1",
    "float4_e1m2": "FLOAT4_E1M2",
    "float4_e2m1fn_x2": "FLOAT4_E2M1",
    "float4_e1m2fn_x2": "FLOAT4_E1M2",
}
_CODE_OFFSET = 256


def read_schemas(files: WheelFiles) -> dict[str, str]:
    """Return the schemas of the wheel's own operators by name, overload included.

    The file is machine-written YAML in which each operator has its ``func`` on one line, so it is
    read line by line and needs no parser. An operator that the section ``symint`` lists again has
    symbolic sizes there, and that form is what torch_npu registers.

    Raises:
        InvalidInputError: the file has no section ``custom`` with operators.
    """
    found: dict[str, str] = {}
    section = ""
    for line in files.read(SCHEMAS).splitlines():
        if heading := _SECTION.match(line):
            section = heading[1]
        elif (function := _FUNCTION.match(line)) and section in ("custom", "symint"):
            schema = function[1].strip().strip("'\"")
            name = schema.split("(", 1)[0].strip()
            if section == "custom" or name in found:
                found[name] = schema
    if not found:
        raise InvalidInputError(
            f"{SCHEMAS} of torch_npu in {files.origin}",
            "no operators in its section 'custom'",
            "Check that the wheel is complete; its format may be newer than this reader.",
        )
    return found


def read_dtype_codes(files: WheelFiles) -> dict[str, int]:
    """Return the integers that stand for dtypes in ``dst_type`` and similar arguments.

    Only those beyond torch's own numbering: ``torch_npu.hifloat8`` and so on, which are 256 plus
    the value in CANN's ``aclDataType``.
    """
    header = files.read(ACL_HEADER)
    values = {name: int(value) for name, value in re.findall(r"\bACL_(\w+) = (-?\d+)", header)}
    return {name: _CODE_OFFSET + values[acl] for name, acl in _DTYPE_NAMES.items()}
