"""From an image to the patches that the vision tower reads.

Written after vLLM 0.27.1's processor of Kimi-K2.5, whose settings Kimi-K3's checkpoints share, so
that no code of a checkpoint has to be run: an image is shrunk until its patches fit, filled up with
black to whole windows on its right and bottom, and normed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from ascend_ops_core.checkpoint.config_reader import FIX_CONFIG, ConfigReader
from ascend_ops_core.errors import InvalidInputError
from PIL import Image
from transformers import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

FILE = "preprocessor_config.json"


@dataclass(frozen=True)
class ImageSettings:
    """``media_proc_cfg`` of a checkpoint, as far as images need it.

    Attributes:
        patch_size: pixels of a patch's side.
        merge: patches of a window's side (``merge_kernel_size``).
        most_patches: of an image (``in_patch_limit``).
        most_side: patches of an image's longer side (``patch_limit_on_one_side``).
        mean: of each channel, of values in [0, 1] (``image_mean``).
        std: the same (``image_std``).
    """

    patch_size: int
    merge: int
    most_patches: int
    most_side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, config: Any) -> Self:
        """Read the settings.

        Args:
            config: content of ``preprocessor_config.json``.

        Raises:
            InvalidInputError: a missing or impossible value.
        """
        outer = ConfigReader(config, f"Kimi-K3's {FILE}")
        read = ConfigReader(outer.get("media_proc_cfg", config), outer.model)
        merge = read.get("merge_kernel_size", 2)
        if isinstance(merge, (list, tuple)):
            merge = merge[0]
        if read.get("fixed_output_tokens") is not None:
            raise InvalidInputError(
                f"fixed_output_tokens={read.get('fixed_output_tokens')}",
                "images have as many tokens as windows",
                "Set it to null.",
            )
        made = cls(
            patch_size=read.integer("patch_size", 14, least=1),
            merge=int(merge),
            most_patches=read.integer("in_patch_limit", least=1),
            most_side=read.integer("patch_limit_on_one_side", least=1),
            mean=tuple(float(one) for one in read.get("image_mean", (0.5, 0.5, 0.5))),
            std=tuple(float(one) for one in read.get("image_std", (0.5, 0.5, 0.5))),
        )
        if made.merge < 1 or made.most_side % made.merge:
            raise InvalidInputError(
                f"patch_limit_on_one_side={made.most_side}, merge_kernel_size={made.merge}",
                "the longest side is made of whole windows",
                FIX_CONFIG,
            )
        if len(made.mean) != 3 or len(made.std) != 3 or 0.0 in made.std:
            raise InvalidInputError(
                f"image_mean={made.mean}, image_std={made.std}",
                "each has three numbers, and no deviation is 0",
                FIX_CONFIG,
            )
        return made

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Pixels of an image after shrinking, which keeps its shape but for rounding."""
        side = self.patch_size
        patches = max(1.0, width // side) * max(1.0, height // side)
        longest = self.most_side * side
        scale = min(1.0, math.sqrt(self.most_patches / patches), longest / width, longest / height)
        return (
            min(max(1, int(width * scale)), longest),
            min(max(1, int(height * scale)), longest),
        )

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of patches of an image of so many pixels, filled up to windows."""
        window = self.patch_size * self.merge
        new_width, new_height = self.resized(width, height)
        return -(-new_height // window) * self.merge, -(-new_width // window) * self.merge

    def tokens(self, width: int, height: int) -> int:
        """Tokens of such an image in a prompt."""
        rows, columns = self.grid(width, height)
        return rows * columns // self.merge**2


class AscendKimiK3ImageProcessor(BaseImageProcessor):
    """Images to patches; see this module's docstring.

    Args:
        settings: of the checkpoint.
    """

    model_input_names = ("pixel_values", "grid_thws")

    def __init__(self, settings: ImageSettings, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.settings = settings

    @property
    def media_proc_cfg(self) -> dict[str, Any]:
        """The settings by their published names, of which vLLM makes the largest image."""
        settings = self.settings
        return {
            "patch_size": settings.patch_size,
            "merge_kernel_size": settings.merge,
            "in_patch_limit": settings.most_patches,
            "patch_limit_on_one_side": settings.most_side,
            "fixed_output_tokens": None,
        }

    @classmethod
    def of_checkpoint(cls, model: str, config: Any) -> Self:
        """The processor of a checkpoint.

        Args:
            model: its name or folder.
            config: content of its ``preprocessor_config.json``; None where it has none.

        Raises:
            InvalidInputError: there are no settings, or wrong ones.
        """
        if config is None:
            raise InvalidInputError(
                f"{model} without {FILE}",
                "it says how images are cut",
                "Put the file beside the weights, or serve text alone with --hf-overrides "
                '\'{"architectures": ["KimiLinearForCausalLM"]}\'.',
            )
        return cls(ImageSettings.of(config))

    def preprocess(
        self, medias: list[dict[str, Any]], return_tensors: Any = None, **kwargs: Any
    ) -> BatchFeature:
        """``pixel_values [N, 3, side, side]`` float32 and ``grid_thws [images, 3]``.

        Args:
            medias: ``{"type": "image", "image": PIL image}`` for each image.
            return_tensors: as transformers' processors take it.
            kwargs: not read.
        """
        patches, grids = [], []
        for media in medias:
            image = media["image"].convert("RGB")
            rows, columns = self.settings.grid(*image.size)
            patches.append(self._patches(image, rows, columns))
            grids.append((1, rows, columns))
        if not patches:
            return BatchFeature({}, tensor_type=return_tensors)
        made = {"pixel_values": torch.cat(patches), "grid_thws": torch.tensor(grids)}
        return BatchFeature(made, tensor_type=return_tensors)

    def _patches(self, image: Image.Image, rows: int, columns: int) -> torch.Tensor:
        """``[rows * columns, 3, side, side]``, row by row."""
        settings, side = self.settings, self.settings.patch_size
        width, height = settings.resized(*image.size)
        pixels = np.zeros((rows * side, columns * side, 3), dtype=np.float32)
        shrunk = image.resize((width, height), resample=Image.Resampling.BICUBIC)
        pixels[:height, :width] = np.asarray(shrunk, dtype=np.float32)
        mean, std = (np.asarray(one, dtype=np.float32) for one in (settings.mean, settings.std))
        normed = (pixels / np.float32(255) - mean) / std
        cut = torch.from_numpy(normed).view(rows, side, columns, side, 3)
        return cut.permute(0, 2, 4, 1, 3).reshape(rows * columns, 3, side, side)
