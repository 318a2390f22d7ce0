"""The import-linter contract type `gated`: some modules may be imported only by named others.

import-linter's own `protected` type refuses names that do not exist (yet), and every package that
may one day hold an `npu.py` would have to be listed. Here both sides are shell patterns on dotted
names, in which `*` also matches dots: `ascend_*.npu` is every module called `npu`, at any depth.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class GatedContract(Contract):
    """Kept when every direct import of a module matching `gated` is in one matching `importers`.

    A module that merely imports an importer is fine: that is what adaptors are for. To keep others
    away from the adaptors as well, name those in `gated`, too.
    """

    type_name = "gated"

    gated = fields.ListField(subfield=fields.StringField())
    importers = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        gated_patterns = cast("list[str]", self.gated)
        importer_patterns = cast("list[str]", self.importers)
        found = []
        for gated in sorted(name for name in graph.modules if _fits(name, gated_patterns)):
            for importer in sorted(graph.find_modules_that_directly_import(gated)):
                if not _fits(importer, importer_patterns):
                    details = graph.get_import_details(importer=importer, imported=gated)
                    lines = sorted({detail["line_number"] for detail in details})
                    found.append({"importer": importer, "gated": gated, "lines": lines})
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for one in check.metadata["found"]:
            lines = ", ".join(str(line) for line in one["lines"])
            output.print_error(f"{one['importer']} (line {lines}) imports {one['gated']}")
        allowed = ", ".join(cast("list[str]", self.importers))
        output.print_error(f"Only these may: {allowed}")
        output.new_line()


def _fits(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
