"""The doctor's look at NPUs: which are there, and whether torch-npu can work.

Nothing here ran on hardware; the messages say so.
"""

from __future__ import annotations

from collections.abc import Iterator

from ascend_vllm_plugin.cli.environment import Facts
from ascend_vllm_plugin.cli.matrix import TORCH_NPU
from ascend_vllm_plugin.cli.verdict import Level, Verdict, against_matrix, pip

NOT_RUN = "not run on hardware"
ON_CPU = "models run on the CPU"


def examine_npu(facts: Facts) -> Iterator[Verdict]:
    """Verdicts on torch-npu and on the device: found, or why not."""
    npu, torch_npu = facts.npu, facts.versions.get(TORCH_NPU.name)
    yield from _host_software(facts)
    seen = []
    if npu.device_nodes:
        seen.append(f"{len(npu.device_nodes)} device node(s), {npu.device_nodes[0]}...")
    if npu.npu_smi:
        seen.append(f"npu-smi at {npu.npu_smi}")
    if torch_npu is None:
        signs = "; ".join(seen) if seen else "none: no /dev/davinci*, no npu-smi, no torch-npu"
        without = "without torch-npu " if seen else ""
        yield Verdict("npu", Level.INFO, f"{signs}; {without}{ON_CPU}")
        return

    yield _torch_npu_version(torch_npu, facts)
    autoload = facts.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"
    if npu.libhccl is not None and not npu.libhccl.ok:
        yield _no_cann(npu.libhccl.detail, autoload, bool(seen))
    elif npu.torch_npu is None or not npu.torch_npu.ok:
        detail = npu.torch_npu.detail if npu.torch_npu else "not tried"
        found = f"libhccl.so loads, but importing torch_npu fails: {detail}; {NOT_RUN}"
        remedy = (
            "install the CANN release that torch-npu's page names for "
            f"{torch_npu}, and source its set_env.sh in this shell"
        )
        yield Verdict("npu", Level.PROBLEM, found, remedy)
    else:
        yield _npu_count(facts, seen)


def _host_software(facts: Facts) -> Iterator[Verdict]:
    """Driver and CANN. No version of either was tested, so there is none to compare with."""
    npu = facts.npu
    if npu.driver is not None:
        found = f"{npu.driver}; none is tested: {NOT_RUN}"
        yield Verdict("driver", Level.INFO, found)
    elif npu.device_nodes:
        found = "there are NPUs, but no driver states its version"
        remedy = (
            "install the Ascend HDK driver; in a container mount /usr/local/Ascend/driver of the "
            "host: -v /usr/local/Ascend/driver:/usr/local/Ascend/driver"
        )
        yield Verdict("driver", Level.WARNING, found, remedy)
    if npu.cann is None:
        return
    found = f"{npu.cann}; none is tested: {NOT_RUN}"
    if TORCH_NPU.name not in facts.versions:
        yield Verdict("cann", Level.INFO, f"{found}; without torch-npu nothing here uses it")
    else:
        yield Verdict("cann", Level.INFO, f"{found}; torch-npu's page names the one it belongs to")


def _torch_npu_version(torch_npu: str, facts: Facts) -> Verdict:
    torch = facts.versions.get("torch")
    if torch and torch.split(".")[:2] != torch_npu.split(".")[:2]:
        wanted = ".".join(torch.split("+")[0].split(".")[:3])
        found = f"{torch_npu} is built for another torch than the installed {torch}; {NOT_RUN}"
        return Verdict("torch-npu", Level.PROBLEM, found, pip(f"torch-npu=={wanted}"))
    verdict = against_matrix(TORCH_NPU, torch_npu, pip(TORCH_NPU.install))
    found = verdict.found.replace("(tested)", "(what this was written against)")
    return Verdict("torch-npu", verdict.level, f"{found}; {NOT_RUN}", verdict.remedy)


def _no_cann(detail: str, autoload: bool, npu_seen: bool) -> Verdict:
    install = (
        "install CANN and source its set_env.sh in this shell (it puts libhccl.so on the path)"
    )
    if autoload:
        found = (
            "torch-npu is installed without CANN (libhccl.so does not load), and torch loads it "
            f"by itself, so every `import torch` fails: {detail}"
        )
        remedy = (
            f"on an NPU host: {install}; to use the CPU: export TORCH_DEVICE_BACKEND_AUTOLOAD=0, "
            "or pip uninstall -y torch-npu"
        )
        return Verdict("npu", Level.PROBLEM, found, remedy)
    found = f"not usable: torch-npu needs libhccl.so of CANN, which does not load: {detail}"
    level = Level.PROBLEM if npu_seen else Level.WARNING
    return Verdict("npu", level, found, f"{install}; without an NPU: pip uninstall -y torch-npu")


def npus_counted(facts: Facts) -> int:
    """NPUs that torch_npu counts; 0 where it cannot be imported."""
    probe = facts.npu.torch_npu
    words = probe.detail.split() if probe is not None and probe.ok else []
    return int(words[-1]) if words and words[-1].isdigit() else 0


def _npu_count(facts: Facts, seen: list[str]) -> Verdict:
    count = npus_counted(facts)
    if count:
        found = f"torch_npu counts {count} NPU(s); models would run there ({NOT_RUN})"
        return Verdict("npu", Level.INFO, found)
    visible = facts.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    where = f"; ASCEND_RT_VISIBLE_DEVICES={visible!r}" if visible is not None else ""
    nodes = "; ".join(seen) or "no /dev/davinci* in this machine or container"
    found = f"torch_npu loads but counts no NPU ({nodes}{where}); {NOT_RUN}"
    remedy = (
        "check `npu-smi info`; in a container pass --device /dev/davinci0, /dev/davinci_manager, "
        "/dev/devmm_svm and /dev/hisi_hdc; unset ASCEND_RT_VISIBLE_DEVICES"
    )
    return Verdict("npu", Level.WARNING, found, remedy)
