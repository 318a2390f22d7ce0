"""Makes an image with too many pixels the client's error instead of the server's.

Upstream symbol: ``vllm.multimodal.media.image.ImageMediaIO.load_bytes`` (0.27.1). It turns what
Pillow cannot read into a ValueError, which the server answers with 400, but not Pillow's
``DecompressionBombError``, which comes before vLLM's own check of ``VLLM_MAX_IMAGE_PIXELS``.
"""

from __future__ import annotations

from functools import wraps
from typing import Any


def refuse_oversized_images() -> None:
    """Wrap the function; may be called any number of times."""
    from PIL import Image
    from vllm.multimodal.media.image import ImageMediaIO

    loader: Any = ImageMediaIO
    load = loader.load_bytes
    if hasattr(load, "__wrapped__"):
        return

    @wraps(load)
    def load_bytes(self: Any, data: bytes) -> Any:
        try:
            return load(self, data)
        except Image.DecompressionBombError as error:
            raise ValueError(f"Failed to load image: {error} Send a smaller one.") from error

    loader.load_bytes = load_bytes
