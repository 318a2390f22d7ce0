"""Single files of a target's checkpoint, from its folder or from where vLLM takes its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ascend_ops_core.errors import InvalidInputError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["TargetFiles", "files_of_target"]


class TargetFiles:
    """The files beside a target's weights, each fetched when it is asked for.

    vLLM itself fetches configs and weights alone, so what else a repository has may not lie in the
    hub's cache although the target is served from there.

    Args:
        model: a folder, or a name on the hub (of Hugging Face; ModelScope's where vLLM is told so).
        revision: of the repository; None for its main branch.
        cache: the folder for downloads, vLLM's ``download_dir``; None for the hub's own.
    """

    def __init__(self, model: str, revision: str | None = None, cache: str | None = None) -> None:
        self.model = model
        self._revision = revision
        self._cache = cache

    @property
    def folder(self) -> Path | None:
        """The target's folder; None for a name on the hub."""
        path = Path(self.model)
        return path if path.exists() else None

    def find(self, name: str) -> Path | None:
        """Where a file lies on this machine, after a download if need be.

        Args:
            name: relative to the checkpoint.

        Returns:
            Its path; None if the checkpoint has no such file.

        Raises:
            InvalidInputError: whether it has one cannot be found out.
        """
        folder = self.folder
        if folder is None:
            return self._fetch(name)
        path = folder / name
        return path if path.is_file() else None

    def _fetch(self, name: str) -> Path | None:
        from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError, RemoteEntryNotFoundError
        from vllm.model_executor.model_loader.weight_utils import maybe_download_from_modelscope
        from vllm.transformers_utils.repo_utils import hf_api

        where = {"revision": self._revision, "cache_dir": self._cache}
        try:
            fetched = maybe_download_from_modelscope(
                self.model, self._revision, self._cache, allow_patterns=[name]
            )
            if fetched is not None:
                path = Path(fetched) / name
                return path if path.is_file() else None
            return Path(hf_api().hf_hub_download(self.model, name, **where))
        except RemoteEntryNotFoundError:
            return None
        except (OSError, HFValidationError) as error:
            known = isinstance(error, OSError) and try_to_load_from_cache(self.model, name, **where)
            if known is _CACHED_NO_EXIST:
                return None  # The hub said so when it was last reached.
            raise InvalidInputError(
                f"target {self.model!r}, of which {name} cannot be read ({error})",
                "a draft must know whether its target is rotated, and that file says so",
                "Download the whole checkpoint and give its folder, or let the hub be reached.",
            ) from error


def files_of_target(vllm_config: VllmConfig) -> TargetFiles:
    """The files of an engine's target, from where vLLM takes its weights."""
    target = vllm_config.model_config
    return TargetFiles(target.model, target.revision, vllm_config.load_config.download_dir)
