"""A draft's window is its own; what stands here fails where the target's is taken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ascend_specdec.vllm.draft_windows import own_window


def test_the_targets_window_is_put_aside_while_layers_are_made() -> None:
    cache = SimpleNamespace(sliding_window=64)
    config: Any = SimpleNamespace(cache_config=cache)
    with own_window(config, None):
        assert cache.sliding_window is None
        with own_window(config, 16):
            assert cache.sliding_window == 16
    assert cache.sliding_window == 64
    with pytest.raises(ValueError, match="layer"), own_window(config, None):
        raise ValueError("layer")
    assert cache.sliding_window == 64


@pytest.mark.engine
def test_upstream_still_gives_layers_the_window_of_the_caches() -> None:
    """Else remove ascend_specdec/vllm/draft_windows.py."""
    import inspect

    from vllm.model_executor.layers.attention import Attention

    source = inspect.getsource(Attention.__init__)
    assert "sliding_window = cache_config.sliding_window" in source
