"""How each layer class and each function of torch.nn is called. A name may have several variants.

Classes without a forward() of their own (containers, parameter lists) are called by a module that uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from function_module import FunctionModule
from operators.values import T
from torch import nn

__all__ = ["FUNCTIONS", "MODULES", "NO_LAYERS", "OUT_OF_REACH", "Layer"]


@dataclass(frozen=True)
class Layer:
    """A variant: how a class or function is created and called.

    Attributes
    ----------
    name : str
        The name of the class or function.
    make : callable
        Returns the module, or the function itself.
    inputs : tuple of T
    """

    name: str
    make: Callable[[], Any]
    inputs: tuple[T, ...]

    def module(self) -> nn.Module:
        """Returns the module in inference mode, with weights from a fixed seed."""
        torch.manual_seed(0)
        made = self.make()
        return made.eval() if isinstance(made, nn.Module) else FunctionModule(made)


class Listed(nn.Module):
    """Applies the modules in a container, or multiplies by its parameters, one after the other."""

    def __init__(self, held: Any, order: Sequence[Any]) -> None:
        super().__init__()
        self.held = held
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for key in self.order:
            item = self.held[key]
            x = item(x) if isinstance(item, nn.Module) else x * item
        return x


class Whole(nn.Module):
    """A layer that is called by the function `call`, for layers with other inputs or outputs than tensors."""

    def __init__(self, layer: Any, call: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = layer
        self.call = call

    def forward(self, *args: Any) -> Any:
        return self.call(self.layer, *args)


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def ready(layer: Any, *inputs: T) -> Any:
    """Returns the lazy layer after its first call, which creates its weights."""
    layer(*(t.tensor() for t in inputs))
    return layer


X1, X2, X3 = T((2, 4, 12)), T((2, 4, 9, 8)), T((2, 4, 6, 5, 7))
EVEN = {1: X1, 2: T((2, 4, 6, 8)), 3: T((2, 4, 6, 4, 8))}
FLAT, VECTOR = T((3, 8)), T((4, 6))
OTHER = T((3, 8), seed=1)
CLASS = T((3,), "i64", "range", low=0, high=8)
CLASSES = T((3, 8), "i64", "range", low=0, high=2)
SIGNS = T((3,), "f32", [1.0, -1.0])
SHARE = T((3, 8), "f32", [0.0, 1.0, 0.3])
PART = T((3, 8), "f32", "positive", seed=2)
STEPS = T((5, 2, 6))
MODULES: list[Layer] = []
FUNCTIONS: list[Layer] = []


def module(name: str, make: Callable[[], Any], *inputs: T) -> None:
    MODULES.append(Layer(name, make, inputs))


def function(name: str, call: Callable[..., Any], *inputs: T) -> None:
    FUNCTIONS.append(Layer(name, lambda: call, inputs))


def of(name: str, call: Callable[..., Any], *inputs: T) -> None:
    """Adds a variant of a function. The first argument of `call` is the function itself."""
    function(name, partial(call, getattr(F, name)), *inputs)


# ---- activations ----

for _name in (
    "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid",
    "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink",
    "Softsign", "Tanh", "Tanhshrink", "Identity", "Dropout", "AlphaDropout",
):  # fmt: skip
    module(_name, getattr(nn, _name), FLAT)
module("GELU", lambda: nn.GELU("tanh"), X2)
module("CELU", lambda: nn.CELU(0.7), X2)
module("ELU", lambda: nn.ELU(1.3), X2)
module("PReLU", lambda: nn.PReLU(4), X2)
module("Softplus", lambda: nn.Softplus(2.0, 3.0), X2)
module("Threshold", lambda: nn.Threshold(0.1, 20.0), X2)
module("GLU", nn.GLU, FLAT)
module("GLU", lambda: nn.GLU(1), X2)
for _name in ("Softmax", "LogSoftmax", "Softmin"):
    module(_name, lambda _name=_name: getattr(nn, _name)(-1), FLAT)
    module(_name, lambda _name=_name: getattr(nn, _name)(1), X2)
module("Softmax2d", nn.Softmax2d, X2)
for _n, _x in ((1, X1), (2, X2), (3, X3)):
    module(f"Dropout{_n}d", getattr(nn, f"Dropout{_n}d"), _x)
module("FeatureAlphaDropout", nn.FeatureAlphaDropout, X3)

# ---- convolution, linear, embedding ----

for _n, _x in ((1, X1), (2, X2), (3, X3)):
    for _lazy, _args in (("", (4, 6)), ("Lazy", (6,))):
        for _kind in ("Conv", "ConvTranspose"):
            _name = f"{_lazy}{_kind}{_n}d"
            module(
                _name, lambda _name=_name, _args=_args, _x=_x: ready(getattr(nn, _name)(*_args, 3), _x), _x
            )
    module(f"Conv{_n}d", lambda _n=_n: getattr(nn, f"Conv{_n}d")(4, 8, 3, 2, 1, 1, 2, False), _x)
    module(f"Conv{_n}d", lambda _n=_n: getattr(nn, f"Conv{_n}d")(4, 4, 3, padding="same", groups=4), _x)
    module(f"ConvTranspose{_n}d", lambda _n=_n: getattr(nn, f"ConvTranspose{_n}d")(4, 6, 3, 2, 1, 1, 2), _x)
for _mode in ("reflect", "replicate", "circular"):
    module("Conv2d", lambda _mode=_mode: nn.Conv2d(4, 6, 3, padding=1, padding_mode=_mode), X2)
module("Linear", lambda: nn.Linear(8, 5), FLAT)
module("Linear", lambda: nn.Linear(8, 5, bias=False), X2)
module("LazyLinear", lambda: ready(nn.LazyLinear(5), FLAT), FLAT)
module("Bilinear", lambda: nn.Bilinear(8, 8, 5), FLAT, OTHER)
module("Embedding", lambda: nn.Embedding(8, 5, padding_idx=0), CLASSES)
for _mode in ("sum", "mean", "max"):
    module("EmbeddingBag", lambda _mode=_mode: nn.EmbeddingBag(8, 5, mode=_mode), CLASSES)

# ---- normalisation ----

for _n, _x in ((1, X1), (2, X2), (3, X3)):
    for _kind in ("BatchNorm", "InstanceNorm"):
        module(f"{_kind}{_n}d", lambda _k=_kind, _n=_n: getattr(nn, f"{_k}{_n}d")(4), _x)
        module(f"{_kind}{_n}d", lambda _k=_kind, _n=_n: getattr(nn, f"{_k}{_n}d")(4, affine=True), _x)
        _name = f"Lazy{_kind}{_n}d"
        module(_name, lambda _name=_name, _x=_x: ready(getattr(nn, _name)(), _x), _x)
module("InstanceNorm2d", lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), X2)
module("BatchNorm1d", lambda: nn.BatchNorm1d(8), FLAT)
module("SyncBatchNorm", lambda: nn.SyncBatchNorm(4), X2)
module("GroupNorm", lambda: nn.GroupNorm(2, 4), X2)
module("LayerNorm", lambda: nn.LayerNorm(8), X2)
module("LayerNorm", lambda: nn.LayerNorm((9, 8), elementwise_affine=False), X2)
module("RMSNorm", lambda: nn.RMSNorm(8), X2)
module("LocalResponseNorm", lambda: nn.LocalResponseNorm(3), X2)
module("CrossMapLRN2d", lambda: nn.CrossMapLRN2d(3), X2)

# ---- pooling, resampling, padding, shapes ----

for _n, _x in ((1, X1), (2, X2), (3, X3)):
    module(f"AvgPool{_n}d", lambda _n=_n: getattr(nn, f"AvgPool{_n}d")(3, 2, 1), _x)
    module(f"AvgPool{_n}d", lambda _n=_n: getattr(nn, f"AvgPool{_n}d")(3, 2, 1, True, False), _x)
    module(f"MaxPool{_n}d", lambda _n=_n: getattr(nn, f"MaxPool{_n}d")(3, 2, 1), _x)
    module(f"MaxPool{_n}d", lambda _n=_n: getattr(nn, f"MaxPool{_n}d")(2, 2, ceil_mode=True), _x)
    module(f"LPPool{_n}d", lambda _n=_n: getattr(nn, f"LPPool{_n}d")(2, 2), _x)
    module(f"AdaptiveAvgPool{_n}d", lambda _n=_n: getattr(nn, f"AdaptiveAvgPool{_n}d")(3), _x)
    module(f"AdaptiveAvgPool{_n}d", lambda _n=_n: getattr(nn, f"AdaptiveAvgPool{_n}d")(1), _x)
    module(f"AdaptiveMaxPool{_n}d", lambda _n=_n: getattr(nn, f"AdaptiveMaxPool{_n}d")(3), _x)
    for _kind in ("Circular", "Reflection", "Replication", "Zero"):
        module(f"{_kind}Pad{_n}d", lambda _k=_kind, _n=_n: getattr(nn, f"{_k}Pad{_n}d")(2), _x)
    module(f"ConstantPad{_n}d", lambda _n=_n: getattr(nn, f"ConstantPad{_n}d")(2, 3.5), _x)
    module(
        f"MaxUnpool{_n}d",
        lambda _n=_n: Whole(
            nn.ModuleList(
                [getattr(nn, f"MaxPool{_n}d")(2, return_indices=True), getattr(nn, f"MaxUnpool{_n}d")(2)]
            ),
            lambda pair, x: pair[1](*pair[0](x)),
        ),
        EVEN[_n],
    )
for _n, _x in ((2, X2), (3, X3)):  # with fixed positions of the windows: by default every call draws new ones
    _made = partial(getattr(nn, f"FractionalMaxPool{_n}d"), 2, output_size=(3,) * _n)
    module(
        f"FractionalMaxPool{_n}d",
        lambda _m=_made, _n=_n, _x=_x: _m(_random_samples=torch.rand(*_x.shape[:2], _n)),
        _x,
    )
for _mode in ("nearest", "bilinear", "bicubic", "nearest-exact", "area"):
    module("Upsample", lambda _m=_mode: nn.Upsample(scale_factor=2, mode=_m), X2)
module("Upsample", lambda: nn.Upsample(scale_factor=2, mode="linear", align_corners=True), X1)
module("Upsample", lambda: nn.Upsample(size=(5, 7), mode="bilinear", align_corners=True), X2)
module("Upsample", lambda: nn.Upsample(scale_factor=2, mode="trilinear"), X3)
module("UpsamplingBilinear2d", lambda: nn.UpsamplingBilinear2d(scale_factor=2), X2)
module("UpsamplingNearest2d", lambda: nn.UpsamplingNearest2d(scale_factor=2), X2)
module("PixelShuffle", lambda: nn.PixelShuffle(2), X2)
module("PixelUnshuffle", lambda: nn.PixelUnshuffle(2), T((2, 4, 6, 8)))
module("ChannelShuffle", lambda: nn.ChannelShuffle(2), X2)
module("Flatten", nn.Flatten, X2)
module("Unflatten", lambda: nn.Unflatten(1, (2, 2)), X2)
module("Unfold", lambda: nn.Unfold(3, padding=1), X2)
module("Fold", lambda: nn.Fold((4, 5), 2), T((2, 8, 12)))

# ---- distances and losses ----

module("CosineSimilarity", nn.CosineSimilarity, FLAT, OTHER)
module("PairwiseDistance", nn.PairwiseDistance, FLAT, OTHER)
for _name in ("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss"):
    for _reduction in ("mean", "none", "sum"):
        module(_name, lambda _name=_name, _r=_reduction: getattr(nn, _name)(reduction=_r), FLAT, OTHER)
module("BCELoss", nn.BCELoss, T((3, 8), "f32", [0.1, 0.5, 0.9]), SHARE)
module("BCEWithLogitsLoss", nn.BCEWithLogitsLoss, FLAT, SHARE)
module("CrossEntropyLoss", nn.CrossEntropyLoss, FLAT, CLASS)
module("CrossEntropyLoss", lambda: nn.CrossEntropyLoss(label_smoothing=0.1), FLAT, CLASS)
module("CrossEntropyLoss", nn.CrossEntropyLoss, FLAT, SHARE)
module("NLLLoss", nn.NLLLoss, FLAT, CLASS)
module("NLLLoss2d", lambda: _nll_of_images(), X2, T((2, 9, 8), "i64", "range", low=0, high=4))
module("PoissonNLLLoss", nn.PoissonNLLLoss, FLAT, PART)
module("GaussianNLLLoss", nn.GaussianNLLLoss, FLAT, OTHER, PART)
module("KLDivLoss", lambda: nn.KLDivLoss(reduction="batchmean"), FLAT, PART)
module("KLDivLoss", lambda: nn.KLDivLoss(reduction="mean", log_target=True), FLAT, OTHER)
module("CosineEmbeddingLoss", nn.CosineEmbeddingLoss, FLAT, OTHER, SIGNS)
module("HingeEmbeddingLoss", nn.HingeEmbeddingLoss, FLAT, T((3, 8), "f32", [1.0, -1.0]))
module("MarginRankingLoss", nn.MarginRankingLoss, T((3,)), T((3,), seed=1), SIGNS)
module("MultiLabelMarginLoss", nn.MultiLabelMarginLoss, FLAT, T((3, 8), "i64", [3, 0, -1, 1, 2, 4, 5, 6]))
module("MultiLabelSoftMarginLoss", nn.MultiLabelSoftMarginLoss, FLAT, SHARE)
module("MultiMarginLoss", nn.MultiMarginLoss, FLAT, CLASS)
module("SoftMarginLoss", nn.SoftMarginLoss, FLAT, T((3, 8), "f32", [1.0, -1.0]))
module("TripletMarginLoss", nn.TripletMarginLoss, FLAT, OTHER, PART)
module("TripletMarginWithDistanceLoss", nn.TripletMarginWithDistanceLoss, FLAT, OTHER, PART)
module("CTCLoss", lambda: Whole(nn.CTCLoss(), _ctc), T((6, 2, 5)), T((2, 3), "i64", "range", low=1, high=5))
module("AdaptiveLogSoftmaxWithLoss", lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 12, [4, 8]), FLAT, CLASS)
if hasattr(nn, "LinearCrossEntropyLoss"):
    module("LinearCrossEntropyLoss", lambda: nn.LinearCrossEntropyLoss(8, 8), FLAT, CLASS)


def _nll_of_images() -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.NLLLoss2d()


def _ctc(loss: nn.CTCLoss, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return loss(x.log_softmax(-1), targets, (6, 6), (3, 3))


# ---- recurrent ----

for _name in ("RNN", "GRU", "LSTM"):
    _kind = getattr(nn, _name)
    module(_name, lambda _k=_kind: _k(6, 5), STEPS)
    module(_name, lambda _k=_kind: _k(6, 5, 2, batch_first=True, bidirectional=True), STEPS)
    module(f"{_name}Cell", lambda _name=_name: getattr(nn, f"{_name}Cell")(6, 5), VECTOR)
module("RNN", lambda: nn.RNN(6, 5, nonlinearity="relu", bias=False), STEPS)
module("LSTM", lambda: nn.LSTM(6, 5, proj_size=3), STEPS)

# ---- attention ----

WORDS, MEMORY = T((5, 2, 8)), T((4, 2, 8), seed=1)
module("MultiheadAttention", lambda: nn.MultiheadAttention(8, 2), WORDS, MEMORY, MEMORY)
module(
    "MultiheadAttention", lambda: Whole(nn.MultiheadAttention(8, 2, batch_first=True), _self_attention), WORDS
)
_small = {"dim_feedforward": 16, "dropout": 0.0}
module("TransformerEncoderLayer", lambda: nn.TransformerEncoderLayer(8, 2, **_small), WORDS)
module(
    "TransformerEncoderLayer",
    lambda: nn.TransformerEncoderLayer(8, 2, activation="gelu", norm_first=True, batch_first=True, **_small),
    WORDS,
)
module("TransformerDecoderLayer", lambda: nn.TransformerDecoderLayer(8, 2, **_small), WORDS, MEMORY)
module(
    "TransformerEncoder", lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, **_small), 2), WORDS
)
module(
    "TransformerDecoder",
    lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, **_small), 2),
    WORDS,
    MEMORY,
)
module("Transformer", lambda: nn.Transformer(8, 2, 1, 1, **_small), MEMORY, WORDS)


def _self_attention(layer: nn.MultiheadAttention, x: torch.Tensor) -> torch.Tensor:
    return layer(x, x, x, need_weights=False)[0]


# ---- containers ----

module("Module", Doubled, FLAT)
module("Sequential", lambda: nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3)), FLAT)
module("ModuleList", lambda: Listed(nn.ModuleList([nn.Linear(8, 8), nn.ReLU()]), (0, 1)), FLAT)
module("ModuleDict", lambda: Listed(nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.ReLU()}), ("a", "b")), FLAT)
module("ParameterList", lambda: Listed(nn.ParameterList([torch.rand(8), torch.rand(8)]), (0, 1)), FLAT)
module("ParameterDict", lambda: Listed(nn.ParameterDict({"a": torch.rand(8)}), ("a",)), FLAT)

# Names that are not layers: they cannot be called, or not on a CPU, so there is nothing to export.
NO_LAYERS = {
    "Container": "deprecated name of Module, without a forward",
    "DataParallel": "copies a module to several GPUs",
    "RNNBase": "base of RNN, GRU and LSTM, without a forward",
    "RNNCellBase": "base of the cells, without a forward",
    "scaled_mm": "fp8 product of CUDA",
    "scaled_grouped_mm": "fp8 product of CUDA",
}

# Names that have rows but cannot be lowered, with the reason.
_DRAWN = "draws random numbers in inference mode too: there is nothing to agree with"
_NEGATIVE = "raises if an element of the variance is negative: torch.export cannot trace that"
_PATHS = "torch.export has no shape for the result of its paths, which depends on lengths"
OUT_OF_REACH = {
    "AdaptiveLogSoftmaxWithLoss": "selects rows by the classes' values: torch.export cannot trace that",
    "CTCLoss": _PATHS,
    "CrossMapLRN2d": "writes into empty tensors that it resizes; LocalResponseNorm is the same",
    "GaussianNLLLoss": _NEGATIVE,
    "ctc_loss": _PATHS,
    "gaussian_nll_loss": _NEGATIVE,
    "gumbel_softmax": _DRAWN,
}

# ---- functions ----

for _name in (
    "celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid",
    "mish", "relu", "relu6", "rrelu", "selu", "sigmoid", "silu", "softplus", "softshrink", "softsign", "tanh",
    "tanhshrink", "normalize", "pdist",
):  # fmt: skip
    function(_name, getattr(F, _name), FLAT)
for _name in ("celu_", "elu_", "hardtanh_", "leaky_relu_", "relu_", "rrelu_", "selu_"):
    of(_name, lambda f, x: f(x + 1), FLAT)
function("threshold", lambda x: F.threshold(x, 0.1, 20.0), FLAT)
function("threshold_", lambda x: F.threshold_(x + 1, 0.1, 20.0), FLAT)
function("prelu", lambda x, w: F.prelu(x, w), X2, T((4,)))
function("glu", F.glu, FLAT)
for _name in ("softmax", "log_softmax", "softmin"):
    of(_name, lambda f, x: f(x, dim=1), X2)
for _name in ("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d"):
    _x = {"1": X1, "2": X2, "3": X3}.get(_name[-2], X3)
    of(_name, lambda f, x: f(x, training=False), _x)
for _n, _x in ((1, X1), (2, X2), (3, X3)):
    _k = T((4, 4, *(3,) * _n))
    function(f"conv{_n}d", getattr(F, f"conv{_n}d"), _x, _k)
    function(f"conv_transpose{_n}d", getattr(F, f"conv_transpose{_n}d"), _x, _k)
    of(f"avg_pool{_n}d", lambda f, x: f(x, 2), _x)
    of(f"max_pool{_n}d", lambda f, x: f(x, 2), _x)
    of(f"lp_pool{_n}d", lambda f, x: f(x, 2.0, 2), _x)
    of(f"adaptive_avg_pool{_n}d", lambda f, x: f(x, 3), _x)
    of(f"adaptive_max_pool{_n}d", lambda f, x: f(x, 3), _x)
    of(f"max_pool{_n}d_with_indices", lambda f, x: f(x, 2)[0], _x)
    of(f"adaptive_max_pool{_n}d_with_indices", lambda f, x: f(x, 3)[0], _x)
    _pool = getattr(F, f"max_pool{_n}d_with_indices")
    of(f"max_unpool{_n}d", lambda f, x, _p=_pool: f(*_p(x, 2), kernel_size=2), EVEN[_n])
for _n, _x in ((2, X2), (3, X3)):
    for _ending in ("", "_with_indices"):
        _name = f"fractional_max_pool{_n}d{_ending}"
        _samples = T((*_x.shape[:2], _n), "f32", [0.1, 0.75, 0.375, 0.96, 0.0])
        of(_name, lambda f, x, u, _n=_n: f(x, 2, output_size=(3,) * _n, _random_samples=u), _x, _samples)
function("conv_tbc", F.conv_tbc, T((5, 2, 4)), T((3, 4, 6)), T((6,)))
function("linear", F.linear, FLAT, T((5, 8)), T((5,)))
function("bilinear", F.bilinear, FLAT, OTHER, T((5, 8, 8)))
function("embedding", F.embedding, CLASSES, T((8, 5)))
function("embedding_bag", lambda i, w: F.embedding_bag(i, w), CLASSES, T((8, 5)))
function("one_hot", lambda i: F.one_hot(i, 8), CLASS)
function("batch_norm", lambda x, m, v: F.batch_norm(x, m, v), X2, T((4,)), T((4,), "f32", "positive"))
function("instance_norm", F.instance_norm, X2)
function("layer_norm", lambda x: F.layer_norm(x, (8,)), X2)
function("rms_norm", lambda x: F.rms_norm(x, (8,)), X2)
function("group_norm", lambda x: F.group_norm(x, 2), X2)
function("local_response_norm", lambda x: F.local_response_norm(x, 3), X2)
function("pad", lambda x: F.pad(x, (1, 2, 0, 1)), X2)
function("pad", lambda x: F.pad(x, (1, 2, 0, 1), mode="reflect"), X2)
for _mode in ("nearest", "bilinear", "bicubic", "area", "nearest-exact"):
    function("interpolate", lambda x, _m=_mode: F.interpolate(x, scale_factor=2, mode=_m), X2)
function("upsample", lambda x: F.upsample(x, scale_factor=2, mode="nearest"), X2)
function("upsample_nearest", lambda x: F.upsample_nearest(x, scale_factor=2), X2)
function("upsample_bilinear", lambda x: F.upsample_bilinear(x, scale_factor=2), X2)
function("affine_grid", lambda t: F.affine_grid(t, (2, 3, 4, 5), align_corners=False), T((2, 2, 3)))
for _mode in ("bilinear", "nearest", "bicubic"):
    function(
        "grid_sample", lambda x, g, _m=_mode: F.grid_sample(x, g, mode=_m, align_corners=False), X2,
        T((2, 3, 5, 2), "f32", "unit"),
    )  # fmt: skip
function("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), X2)
function("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), T((2, 4, 6, 8)))
function("channel_shuffle", lambda x: F.channel_shuffle(x, 2), X2)
function("native_channel_shuffle", lambda x: F.native_channel_shuffle(x, 2), X2)
function("unfold", lambda x: F.unfold(x, 3, padding=1), X2)
function("fold", lambda x: F.fold(x, (4, 5), 2), T((2, 8, 12)))
function("cosine_similarity", F.cosine_similarity, FLAT, OTHER)
function("pairwise_distance", F.pairwise_distance, FLAT, OTHER)
function("scaled_dot_product_attention", F.scaled_dot_product_attention, X2, T((2, 4, 9, 8), seed=1), X2)
for _name in ("l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss"):
    function(_name, getattr(F, _name), FLAT, PART)
function("binary_cross_entropy", F.binary_cross_entropy, T((3, 8), "f32", [0.1, 0.5, 0.9]), SHARE)
function("binary_cross_entropy_with_logits", F.binary_cross_entropy_with_logits, FLAT, SHARE)
for _name in ("cross_entropy", "nll_loss", "multi_margin_loss"):
    function(_name, getattr(F, _name), FLAT, CLASS)
function("linear_cross_entropy", lambda x, w, t: F.linear_cross_entropy(x, w, t), FLAT, T((8, 8)), CLASS)
function("gaussian_nll_loss", F.gaussian_nll_loss, FLAT, OTHER, PART)
function("kl_div", lambda x, t: F.kl_div(x, t, reduction="batchmean"), FLAT, PART)
function("cosine_embedding_loss", F.cosine_embedding_loss, FLAT, OTHER, SIGNS)
function("hinge_embedding_loss", F.hinge_embedding_loss, FLAT, T((3, 8), "f32", [1.0, -1.0]))
function("margin_ranking_loss", F.margin_ranking_loss, T((3,)), T((3,), seed=1), SIGNS)
function(
    "multilabel_margin_loss", F.multilabel_margin_loss, FLAT, T((3, 8), "i64", [3, 0, -1, 1, 2, 4, 5, 6])
)
function("multilabel_soft_margin_loss", F.multilabel_soft_margin_loss, FLAT, SHARE)
function("soft_margin_loss", F.soft_margin_loss, FLAT, T((3, 8), "f32", [1.0, -1.0]))
function("triplet_margin_loss", F.triplet_margin_loss, FLAT, OTHER, PART)
function("triplet_margin_with_distance_loss", F.triplet_margin_with_distance_loss, FLAT, OTHER, PART)
function("ctc_loss", lambda x, t: F.ctc_loss(x.log_softmax(-1), t, (6, 6), (3, 3)), T((6, 2, 5)),
         T((2, 3), "i64", "range", low=1, high=5))  # fmt: skip
function("gumbel_softmax", F.gumbel_softmax, FLAT)
function("multi_head_attention_forward", lambda x, w, b, o, p: _attention(x, w, b, o, p),
         WORDS, T((24, 8)), T((24,)), T((8, 8)), T((8,)))  # fmt: skip
function("grouped_mm", lambda a, b: F.grouped_mm(a, b), T((2, 4, 8), "bf16"), T((2, 8, 16), "bf16"))


def _attention(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, o: torch.Tensor, p: torch.Tensor) -> Any:
    return F.multi_head_attention_forward(
        x, x, x, 8, 2, w, b, None, None, False, 0.0, o, p, training=False, need_weights=False
    )[0]
