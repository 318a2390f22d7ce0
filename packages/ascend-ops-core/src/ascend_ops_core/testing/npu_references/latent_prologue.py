"""What stands in front of latent attention: the cache's rows, and the whole prologue."""

from __future__ import annotations

import torch

from ascend_ops_core.testing.npu_references.limits import (
    HALVES,
    require,
    require_contiguous,
    require_dtype,
    require_family,
    require_filled,
    require_rank,
)
from ascend_ops_core.testing.npu_references.registry import reference

_RANK, _ROTARY = 512, 64
_BF16 = (torch.bfloat16,)


@reference("npu_kv_rmsnorm_rope_cache", documented=("A2", "A3"))
def npu_kv_rmsnorm_rope_cache(
    kv: torch.Tensor,
    gamma: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    index: torch.Tensor,
    k_cache: torch.Tensor,
    ckv_cache: torch.Tensor,
    *,
    k_rope_scale: torch.Tensor | None = None,
    c_kv_scale: torch.Tensor | None = None,
    k_rope_offset: torch.Tensor | None = None,
    c_kv_offset: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Norm of the latent and rotation of the key of every token, written to two caches.

    The key's channels are gathered, the even before the odd, and then turned as halves.

    Limits: kv of (B, 1, S, 576), float16 or bfloat16, everything else but the index in its dtype;
    512 values are normed, 64 rotated, with cosines and sines of 64; indices int64, one a token,
    that differ from each other; blocks in multiples of 32 rows, as many as each of the B sequences
    fills.

    Modelled: PA_BNSD without quantisation, a second tensor of values, or results apart.

    Assumed: an index of -1 writes nothing, which the documentation of CANN's operator allows;
    norm and rotation in float32.
    """
    op = "npu_kv_rmsnorm_rope_cache"
    others = (k_rope_scale, c_kv_scale, k_rope_offset, c_kv_offset, v)
    require(all(one is None for one in others), op, "quantisation or v", "not modelled")
    require(not is_output_kv, op, "is_output_kv=True", "not modelled")
    require(cache_mode == "PA_BNSD", op, f"cache_mode={cache_mode!r}", "modelled is PA_BNSD")
    require_family(op, "A2", "A3")
    require_dtype(op, "kv", kv, HALVES)
    given = {"gamma": gamma, "cos": cos, "sin": sin, "k_cache": k_cache, "ckv_cache": ckv_cache}
    for name, one in given.items():
        require_dtype(op, name, one, (kv.dtype,))
    require_dtype(op, "index", index, (torch.int64,))
    require_filled(op, kv=kv, **given)
    require_contiguous(op, kv=kv, index=index, **given)
    require_rank(op, "kv", kv, 4, 4)
    batch, heads, length, width = kv.shape
    require(heads == 1, op, f"{heads} heads", "it is one")
    require(width == _RANK + _ROTARY, op, f"kv of {width}", "576")
    require(list(gamma.shape) == [_RANK], op, f"gamma {list(gamma.shape)}", "[512]")
    for name, one in (("cos", cos), ("sin", sin)):
        require(
            list(one.shape) == [batch, 1, length, _ROTARY], op, f"{name} {list(one.shape)}",
            f"[{batch}, 1, {length}, 64]",
        )  # fmt: skip
    blocks, rows = _paged(op, ckv_cache, k_cache)
    require(rows % 32 == 0, op, f"blocks of {rows} rows", "multiples of 32")
    require(blocks >= -(-length // rows) * batch, op, f"{blocks} blocks", "what the tokens fill")
    _check_index(op, index, batch * length, blocks * rows)
    latent, rope = kv.reshape(-1, width).float().split([_RANK, _ROTARY], dim=-1)
    _write(ckv_cache, index, _normed(latent, gamma, epsilon))
    _write(k_cache, index, _turned(rope, cos.reshape(-1, _ROTARY), sin.reshape(-1, _ROTARY)))
    return (
        k_cache.clone(),
        ckv_cache.clone(),
        kv.new_empty((batch, 1, length, _ROTARY)),
        kv.new_empty((batch, 1, length, _RANK)),
    )


@reference("npu_mla_prolog_v3", documented=("A2", "A3"))
def npu_mla_prolog_v3(
    token_x: torch.Tensor,
    weight_dq: torch.Tensor,
    weight_uq_qr: torch.Tensor,
    weight_uk: torch.Tensor,
    weight_dkv_kr: torch.Tensor,
    rmsnorm_gamma_cq: torch.Tensor,
    rmsnorm_gamma_ckv: torch.Tensor,
    rope_sin: torch.Tensor,
    rope_cos: torch.Tensor,
    kv_cache: torch.Tensor,
    kr_cache: torch.Tensor,
    *,
    cache_index: torch.Tensor | None = None,
    rmsnorm_epsilon_cq: float = 1e-5,
    rmsnorm_epsilon_ckv: float = 1e-5,
    cache_mode: str = "PA_BSND",
    query_norm_flag: bool = False,
    tile_size: int = 128,
    qc_qr_scale: float = 1.0,
    kc_scale: float = 1.0,
    **others: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Projections, norms, rotation and absorption of tokens, and their rows in two caches.

    Limits: everything bfloat16, indices int64; a hidden size of 6144, 7168 or 7680, latents of 1536
    and 512, heads of 128 + 64, a power of two up to 128 of them; blocks of 16 or 128 rows; up to
    1048576 tokens, which may be none.

    Modelled: (T, He), PA_BSND, no quantisation, factors of 1, the normed latent asked for.

    Assumed: pairs are gathered as by npu_kv_rmsnorm_rope_cache, which is what CANN's sources do; an
    index of -1 writes nothing, as there, where the documentation's range begins with 0; the fourth
    result is the normed latent of queries if its flag is set, which torch_npu's documentation
    calls reserved; what is between two steps is rounded to bfloat16.
    """
    op = "npu_mla_prolog_v3"
    require(not any(others.values()), op, "quantisation, dtypes, lengths", "not modelled")
    require(query_norm_flag and tile_size == 128, op, "no normed latent", "modelled with it")
    require((qc_qr_scale, kc_scale) == (1.0, 1.0), op, "factors", "modelled are 1")
    require(cache_mode == "PA_BSND", op, f"cache_mode={cache_mode!r}", "modelled is PA_BSND")
    require_family(op, "A2", "A3")
    require(cache_index is not None, op, "no cache_index", "modelled with one")
    assert cache_index is not None
    weights = {
        "weight_dq": weight_dq, "weight_uq_qr": weight_uq_qr, "weight_uk": weight_uk,
        "weight_dkv_kr": weight_dkv_kr, "rmsnorm_gamma_cq": rmsnorm_gamma_cq,
        "rmsnorm_gamma_ckv": rmsnorm_gamma_ckv,
    }  # fmt: skip
    of_step = {
        "token_x": token_x, "rope_sin": rope_sin, "rope_cos": rope_cos, "kv_cache": kv_cache,
        "kr_cache": kr_cache,
    }  # fmt: skip
    for name, one in (weights | of_step).items():
        require_dtype(op, name, one, _BF16)
    require_dtype(op, "cache_index", cache_index, (torch.int64,))
    require_filled(op, **weights)
    require_contiguous(op, **weights, **of_step, cache_index=cache_index)
    require_rank(op, "token_x", token_x, 2, 2)
    require_rank(op, "weight_uk", weight_uk, 3, 3)
    tokens, size = token_x.shape
    heads, nope, rank = weight_uk.shape
    require(size in (6144, 7168, 7680), op, f"He={size}", "6144, 7168 or 7680")
    require(tokens <= 1048576, op, f"T={tokens}", "0 to 1048576")
    require(heads <= 128 and heads & (heads - 1) == 0, op, f"N={heads}", "a power of two to 128")
    require((nope, rank) == (128, _RANK), op, f"weight_uk of {nope}, {rank}", "128 and 512")
    shapes = {
        "weight_dq": [size, 1536], "weight_uq_qr": [1536, heads * 192],
        "weight_dkv_kr": [size, _RANK + _ROTARY], "rmsnorm_gamma_cq": [1536],
        "rmsnorm_gamma_ckv": [_RANK], "rope_sin": [tokens, _ROTARY], "rope_cos": [tokens, _ROTARY],
    }  # fmt: skip
    for name, shape in shapes.items():
        found = list((weights | of_step)[name].shape)
        require(found == shape, op, f"{name} {found}", f"{shape}")
    blocks, rows = _paged(op, kv_cache, kr_cache)
    require(rows in (16, 128), op, f"blocks of {rows} rows", "16 or 128")
    _check_index(op, cache_index, tokens, blocks * rows)

    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x.float() @ weight.float()).to(x.dtype)

    latent = product(token_x, weight_dq)
    latent = _normed(latent.float(), rmsnorm_gamma_cq, rmsnorm_epsilon_cq).to(token_x.dtype)
    query = product(latent, weight_uq_qr).view(tokens, heads, nope + _ROTARY)
    plain, rope = query.split([nope, _ROTARY], dim=-1)
    cos, sin = rope_cos.unsqueeze(1), rope_sin.unsqueeze(1)
    absorbed = torch.einsum("thn,hnl->thl", plain.float(), weight_uk.float())
    row = product(token_x, weight_dkv_kr).float()
    written = _normed(row[:, :_RANK], rmsnorm_gamma_ckv, rmsnorm_epsilon_ckv)
    _write(kv_cache, cache_index, written)
    _write(kr_cache, cache_index, _turned(row[:, _RANK:], rope_cos, rope_sin))
    empty = torch.empty(0)
    return (
        absorbed.to(token_x.dtype),
        _turned(rope.float(), cos, sin).to(token_x.dtype),
        empty,
        latent,
        empty,
    )


def _paged(op: str, latents: torch.Tensor, ropes: torch.Tensor) -> tuple[int, int]:
    """Blocks and rows of caches of (blocks, rows, 1, 512) and (blocks, rows, 1, 64)."""
    blocks, rows = latents.shape[:2]
    for one, width in ((latents, _RANK), (ropes, _ROTARY)):
        shape = [blocks, rows, 1, width]
        require(list(one.shape) == shape, op, f"a cache {list(one.shape)}", f"{shape}")
    return blocks, rows


def _check_index(op: str, index: torch.Tensor, tokens: int, rows: int) -> None:
    require(list(index.shape) == [tokens], op, f"index {list(index.shape)}", f"[{tokens}]")
    real = index[index >= 0]
    require(bool((index >= -1).all()), op, "an index below -1", "-1 or more")
    require(bool((real < rows).all()), op, "an index behind the rows", f"less than {rows}")
    require(len(real.unique()) == len(real), op, "an index twice", "they differ")


def _normed(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * gamma.float()


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Even channels before odd ones, turned as halves."""
    even, odd = x[..., ::2], x[..., 1::2]
    halves, turned = torch.cat((even, odd), -1), torch.cat((-odd, even), -1)
    return halves * cos.float() + turned * sin.float()


def _write(cache: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
    real = index >= 0
    cache.view(-1, cache.shape[-1])[index[real]] = rows[real].to(cache.dtype)
