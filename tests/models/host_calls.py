"""Networks with calls that a target may lack: detection, beam search, sorting, histograms, sparse updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["NETWORKS", "HostCalls", "samples_of"]

_BOXES, _CLASSES, _WIDTH = 24, 6, 16


class HostCalls(nn.Module):
    """A convolution and a linear layer, the calls of one case between them and a linear layer after them.

    `head` gets the module and the features, and returns what the module returns. `scores` makes (N, 24, 6)
    scores, `boxes` (N, 24, 4) corners, `tokens` (N, 6, 16) tokens, and `last` reads 16 numbers.
    """

    def __init__(self, head: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.head = head
        self.conv = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten())
        self.to_scores, self.to_boxes = nn.Linear(128, _BOXES * _CLASSES), nn.Linear(128, _BOXES * 4)
        self.to_tokens, self.last = nn.Linear(128, 6 * _WIDTH), nn.Linear(_WIDTH, 4)
        self.register_buffer("codes", torch.linspace(-1, 1, 12 * _WIDTH).sin().reshape(12, _WIDTH))
        self.register_buffer("square", torch.eye(_WIDTH) + 0.01 * torch.ones(_WIDTH, _WIDTH))
        self.register_buffer("memory", torch.zeros(6, _WIDTH))

    def scores(self, f: Any) -> Any:
        return self.to_scores(f).reshape(-1, _BOXES, _CLASSES)

    def boxes(self, f: Any) -> Any:
        corner, size = self.to_boxes(f).sigmoid().reshape(-1, _BOXES, 2, 2).unbind(2)
        return torch.cat([corner, corner + size], -1)

    def tokens(self, f: Any) -> Any:
        return self.to_tokens(f).reshape(-1, 6, _WIDTH)

    def forward(self, x: Any) -> Any:
        return self.head(self, self.conv(x))


def _gathered(x: Any, places: Any) -> Any:
    return x.gather(1, places[..., None].expand(*places.shape, x.shape[-1]))


def _topk_head(m: Any, f: Any) -> Any:
    best, classes = m.scores(f).sigmoid().max(-1)
    kept, places = best.topk(8)
    return kept, classes.gather(1, places), _gathered(m.boxes(f), places)


def _overlap(a: Any, b: Any) -> Any:
    size = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    area = [(each[..., 2:] - each[..., :2]).prod(-1) for each in (a, b)]
    inner = size.prod(-1)
    return inner / (area[0] + area[1] - inner + 1e-6)


def _nms(m: Any, f: Any) -> Any:
    """Greedy suppression of eight boxes in the order of their scores."""
    kept, places = m.scores(f).amax(-1).sigmoid().topk(8)
    boxes = _gathered(m.boxes(f), places)
    overlap = _overlap(boxes[:, :, None], boxes[:, None])
    alive = torch.ones_like(kept)
    for i in range(7):
        behind = torch.arange(8) > i
        alive = alive * (1 - (overlap[:, i] > 0.5).to(kept.dtype) * behind * alive[:, i : i + 1])
    return kept * alive, boxes


def _soft_nms(m: Any, f: Any) -> Any:
    kept, places = m.scores(f).amax(-1).sigmoid().topk(6)
    boxes = _gathered(m.boxes(f), places)
    overlap = _overlap(boxes[:, :, None], boxes[:, None]).tril(-1)
    return kept * torch.exp(-2 * overlap.amax(-1) ** 2)


def _matrix_nms(m: Any, f: Any) -> Any:
    kept, order = m.scores(f).amax(-1).sigmoid().sort(descending=True)
    boxes = _gathered(m.boxes(f), order)
    overlap = _overlap(boxes[:, :, None], boxes[:, None]).triu(1)
    return kept * ((1 - overlap) / (1 - overlap.amax(1)[:, :, None] + 1e-3)).amin(1)


def _peaks(m: Any, f: Any) -> Any:
    """The maxima of a heat map, as in CenterNet."""
    heat = m.scores(f).sigmoid().reshape(-1, _CLASSES, 4, 6)
    peaks = heat * (nn.functional.max_pool2d(heat, 3, 1, 1) == heat)
    kept, places = peaks.flatten(1).topk(10)
    return kept, places % 6, places // 6 % 4


def _beam(m: Any, f: Any) -> Any:
    """One step of a beam search with three beams."""
    logp = torch.log_softmax(m.scores(f)[:, :3], -1)
    total, places = logp.flatten(1).topk(3)
    return total, places // _CLASSES, places % _CLASSES


def _two_beams(m: Any, f: Any) -> Any:
    logp = torch.log_softmax(m.scores(f), -1)
    first, a = logp[:, 0].topk(3)
    total, b = (first[:, :, None] + logp[:, 1:4]).flatten(1).topk(3)
    return total, a.gather(1, b // _CLASSES), b % _CLASSES


def _nucleus(m: Any, f: Any) -> Any:
    """Nucleus sampling without the sample: probabilities of the smallest set with 0.9 of the mass."""
    p, order = m.scores(f)[:, 0].softmax(-1).sort(-1, descending=True)
    kept = torch.where(p.cumsum(-1) - p < 0.9, p, 0)
    return torch.zeros_like(p).scatter(1, order, kept / kept.sum(-1, keepdim=True))


def _moe(m: Any, f: Any) -> Any:
    """The two best of four experts, weighted."""
    tokens = m.tokens(f)
    gate, chosen = tokens[..., :4].softmax(-1).topk(2)
    weight = tokens.new_zeros(*tokens.shape[:2], 4).scatter(-1, chosen, gate / gate.sum(-1, keepdim=True))
    experts = tokens[:, :, None] * m.codes[:4]
    return m.last((experts * weight[..., None]).sum(2))


def _pool_by_segment(how: str) -> Callable[[Any, Any], Any]:
    def head(m: Any, f: Any) -> Any:
        tokens = m.tokens(f)
        place = torch.tensor([0, 1, 0, 2, 1, 0])[None, :, None].expand(tokens.shape)
        empty = tokens.new_zeros(tokens.shape[0], 3, _WIDTH)
        return m.last(empty.scatter_reduce(1, place, tokens, how, include_self=False))

    return head


def _graph(m: Any, f: Any) -> Any:
    """Messages along the edges of a graph: sums at the nodes that they reach."""
    tokens = m.tokens(f)
    sources, targets = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])
    messages = torch.relu(tokens[:, sources])
    return m.last(tokens.index_add(1, targets, messages))


def _token_merge(m: Any, f: Any) -> Any:
    """Merges the most similar tokens, as in ToMe."""
    tokens = m.tokens(f)
    a, b = tokens[:, ::2], tokens[:, 1::2]
    near = nn.functional.normalize(a, dim=-1) @ nn.functional.normalize(b, dim=-1).mT
    best, place = near.max(-1)
    order = best.argsort(-1, descending=True)
    merged = _gathered(a, order[:, :1])
    return m.last(torch.cat([b, merged], 1)), place


def _prune(m: Any, f: Any) -> Any:
    tokens = m.tokens(f)
    places = tokens.pow(2).sum(-1).topk(3)[1].sort(-1)[0]
    return m.last(_gathered(tokens, places))


def _image_tokens(m: Any, f: Any) -> Any:
    """Image features replace placeholders among text embeddings."""
    tokens = m.tokens(f)
    mask = torch.tensor([False, True, True, False, True, False])[None, :, None].expand(tokens.shape)
    return m.last(m.codes[:6].expand(tokens.shape).masked_scatter(mask, tokens * 0.5))


def _memory(m: Any, f: Any) -> Any:
    """A memory of which one row is written, and which is read by similarity."""
    row = m.tokens(f)[0, 0]
    m.memory.index_copy_(0, torch.tensor([2]), row[None])
    weight = (m.memory @ row).softmax(0)
    return m.last(weight @ m.memory)


def _simple(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A function of tokens (N, 6, 16) and of the module."""

    def head(m: Any, f: Any) -> Any:
        return function(m, m.tokens(f))

    return head


def _covariance(m: Any, t: Any) -> Any:
    """In f32: torch has no decompositions of f16."""
    return (t.mT @ t * 0.01 + m.square).float()


NETWORKS: dict[str, Callable[[Any, Any], Any]] = {
    "detection, topk": _topk_head,
    "detection, greedy suppression": _nms,
    "detection, soft suppression": _soft_nms,
    "detection, matrix suppression": _matrix_nms,
    "detection, peaks of a heat map": _peaks,
    "detection, sorted by score": lambda m, f: m.scores(f).amax(-1).sort(descending=True),
    "beam search, one step": _beam,
    "beam search, two steps": _two_beams,
    "nucleus of probabilities": _nucleus,
    "mixture of experts": _moe,
    "segments, maximum": _pool_by_segment("amax"),
    "segments, mean": _pool_by_segment("mean"),
    "segments, sum": _pool_by_segment("sum"),
    "messages in a graph": _graph,
    "merged tokens": _token_merge,
    "pruned tokens": _prune,
    "image features among tokens": _image_tokens,
    "memory that is written": _memory,
    "sorted tokens": _simple(lambda m, t: m.last(t.sort(1)[0])),
    "trimmed mean": _simple(lambda m, t: m.last(t.sort(1)[0][:, 1:-1].mean(1))),
    "median pooling": _simple(lambda m, t: m.last(t.median(1)[0])),
    "quantile scaling": _simple(
        lambda m, t: m.last(t / (t.float().abs().quantile(0.9, -1, keepdim=True).to(t.dtype) + 0.1))
    ),
    "second largest": _simple(lambda m, t: m.last(t) - t.kthvalue(15, -1, keepdim=True)[0]),
    "running maximum": _simple(lambda m, t: m.last(t.cummax(1)[0])),
    "running minimum": _simple(lambda m, t: m.last(t.cummin(1)[0])),
    "most frequent level": _simple(lambda m, t: (t.mul(2).round().mode(-1)[0], m.last(t))),
    "histogram": _simple(lambda m, t: (torch.histc(t, 8, -2, 2), m.last(t))),
    "levels by boundaries": _simple(
        lambda m, t: m.last(m.codes[torch.bucketize(t[..., 0], m.codes[0].sort()[0][:9])])
    ),
    "places in sorted numbers": _simple(
        lambda m, t: (torch.searchsorted(m.codes[1].sort()[0], t), m.last(t))
    ),
    "codes of nearest neighbours": _simple(
        lambda m, t: m.last(m.codes[torch.cdist(t.float(), m.codes.float()).argmin(-1)])
    ),
    "sparse activations": _simple(lambda m, t: m.last(torch.zeros_like(t).scatter(-1, *reversed(t.topk(4))))),
    "error function": _simple(lambda m, t: m.last(torch.erfc(t))),
    "resized with a filter": _simple(
        lambda m, t: m.last(
            nn.functional.interpolate(t[:, None].float(), (4, 16), mode="bilinear", antialias=True)[:, 0].to(
                t.dtype
            )
        )
    ),
    "gamma function": _simple(lambda m, t: m.last(torch.lgamma(t.abs() + 1))),
    "Bessel window": _simple(lambda m, t: m.last(t * torch.special.i0(t))),
    "whitened tokens": _simple(
        lambda m, t: m.last(torch.linalg.solve(_covariance(m, t), t.mT.float()).mT.to(t.dtype))
    ),
    "inverse covariance": _simple(lambda m, t: m.last(t @ torch.inverse(_covariance(m, t)).to(t.dtype))),
    "determinant": _simple(lambda m, t: (torch.linalg.slogdet(_covariance(m, t))[1], m.last(t))),
    "mantissas": _simple(lambda m, t: (m.last(torch.frexp(t + 3)[0]), torch.frexp(t + 3)[1])),
    "singular values": _simple(lambda m, t: (torch.linalg.svdvals(t.float()), m.last(t))),
}


def samples_of(count: int, seed: int = 0) -> list[tuple[Any, ...]]:
    """Returns images (1, 3, 8, 8)."""
    random = torch.Generator().manual_seed(seed)
    return [(torch.randn(1, 3, 8, 8, generator=random),) for _ in range(count)]
