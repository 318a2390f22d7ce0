"""Definition of the ids whose log-probabilities are wanted."""

from __future__ import annotations

import torch


def logprob_token_ids(
    sampled: torch.Tensor,
    top_ids: torch.Tensor | None,
    requests: torch.Tensor,
    custom_counts: torch.Tensor,
    custom_ids: torch.Tensor,
    columns: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.sampling.logprob_token_ids`."""

    def widened(ids: torch.Tensor) -> torch.Tensor:
        ids = ids.long()[:, :columns]
        return torch.nn.functional.pad(ids, (0, columns - ids.shape[1]))

    requests = requests.long()
    custom = custom_counts[requests]
    top = sampled.new_empty((len(sampled), 0)) if top_ids is None else top_ids
    own = (custom > 0)[:, None]
    wanted = torch.where(own, custom[:, None], top.shape[1])
    tail = torch.where(own, widened(custom_ids[requests]), widened(top))
    valid = torch.arange(columns, device=sampled.device) < wanted
    ids = torch.cat((sampled.long()[:, None], tail * valid), dim=1)
    always = torch.ones_like(sampled, dtype=torch.bool)[:, None]
    return ids, torch.cat((always, valid), dim=1)
