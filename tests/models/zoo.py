"""Networks with random weights of realistic scale, and small networks of the same architectures.

The architectures come from transformers (built from a configuration, nothing is downloaded), and two modules
are our own. A network as its constructor initialises it is a weak test: many initialisers are so small that
the output is almost 0 or does not depend on the input, and tokens, positions and layer scales start at zero.
So every parameter is drawn anew by a rule for its kind, such that activations stay near unit scale, and batch
norms have the statistics of a few batches. Inputs have large-scale structure, like photographs: a pooled
feature of white noise hardly depends on the input.

Everything is seeded: a name always has the same network and the same samples.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

NETWORKS = (
    "mobilenet_v2",
    "resnet18",
    "resnet50",
    "efficientnet_b0",
    "convnext_tiny",
    "deit_tiny",
    "bert4",
    "llama2",
    "unet",
    "ds_cnn",
)
"""The ten networks at full size."""

MORE = ("mobilevit", "swin", "opt", "qwen2", "wav2vec2")
"""Five more architectures, with which only tosaic's quantizer is measured."""

SMALL = tuple(f"{name}_small" for name in (*NETWORKS, *MORE))
"""The same architectures, small enough to be tested in seconds."""

Sampler = Callable[[torch.Generator, int], torch.Tensor]
_WARM_UP_BATCHES = 4
_WARM_UP_SIZE = 4


@dataclass(frozen=True)
class Network:
    """A network ready to export.

    Attributes
    ----------
    name : str
    module : torch.nn.Module
        In inference mode.
    sampler : callable
        Draws a batch of inputs.
    """

    name: str
    module: nn.Module
    sampler: Sampler

    def sample(self, index: int = 0) -> tuple[torch.Tensor, ...]:
        """Returns the arguments of one call, with batch size 1. Each index has different ones."""
        return (self.sampler(torch.Generator().manual_seed(1000 + index), 1),)

    def export(self) -> torch.export.ExportedProgram:
        """Returns the exported program of the network (non-strict export)."""
        with quiet():
            return torch.export.export(self.module, self.sample(), strict=False)

    @property
    def parameters(self) -> int:
        """The number of parameters. Tied parameters count once."""
        return sum(parameter.numel() for parameter in self.module.parameters())


def build(name: str) -> Network:
    """Returns the network of this name, which is in `NETWORKS`, `MORE` or `SMALL`."""
    small = name.endswith("_small")
    make, sampler = _MAKERS[name.removesuffix("_small")](small)
    with torch.random.fork_rng(devices=()), one_thread(), quiet():
        torch.manual_seed(20)
        module = make().eval()
        draw_parameters(module)
        warm_up(module, sampler)
    return Network(name, module, sampler)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses warnings, which torch and transformers raise about code of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs torch on one thread.

    The order in which torch adds, and so the last bits of its sums, depend on the number of threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# ---- float64 ----


class _InFloat64(TorchFunctionMode):
    """Replaces every float32 dtype that a module passes to torch, and every ``.float()``, by float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(_widened(a) for a in args)
        return func(*args, **{key: _widened(value) for key, value in (kwargs or {}).items()})


def _widened(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


def run_in_float64(module: nn.Module, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Runs the module with the same parameters and every operation in float64.

    ``module.double()`` alone is not enough for modules that request float32 inside (RMS norms, rotary
    embeddings, softmax). The module is float64 afterwards.
    """
    wide = tuple(a.double() if a.is_floating_point() else a for a in args)
    with torch.no_grad(), _InFloat64():
        result = module.double()(*wide)
    assert result.dtype == torch.float64
    return result


# ---- parameters ----


def draw_parameters(module: nn.Module) -> None:
    """Draws every parameter by the rule for its kind, with torch's default generator."""
    drawn = set()
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if parameter not in drawn:  # a tied parameter has the scale for its first owner
                with torch.no_grad():
                    _draw(owner, name, parameter)
                drawn.add(parameter)


def _draw(owner: nn.Module, name: str, parameter: torch.Tensor) -> None:
    if isinstance(owner, nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d) and name == "weight":
        parameter.normal_(0, 1 / math.sqrt(_fan_in(owner)))
    elif isinstance(owner, nn.Embedding):
        parameter.normal_()
    elif type(owner).__name__.endswith(("Norm", "Norm2d")) and name == "weight":
        parameter.uniform_(0.5, 1.5)
    elif name == "bias":
        parameter.normal_(0, 0.1)
    else:  # tokens, positions, layer scales
        parameter.normal_(0, 0.5)


def _fan_in(owner: nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d) -> float:
    """Returns the number of products in the sum of one output element."""
    if isinstance(owner, nn.ConvTranspose2d):
        return owner.in_channels // owner.groups * math.prod(owner.kernel_size) / math.prod(owner.stride)
    return owner.weight[0].numel()


def warm_up(module: nn.Module, sampler: Sampler) -> None:
    """Sets the statistics of every batch norm to the statistics of a few batches.

    Only the batch norms are in training mode meanwhile, and no module is afterwards.
    """
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    generator = torch.Generator().manual_seed(7)
    momentum = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean of all batches
        norm.train()
    with torch.no_grad():
        for _ in range(_WARM_UP_BATCHES if norms else 0):
            module(sampler(generator, _WARM_UP_SIZE))
    for norm, before in zip(norms, momentum, strict=True):
        norm.momentum = before
        norm.eval()


# ---- inputs ----


def pictures(size: int | tuple[int, int], channels: int = 3) -> Sampler:
    """Returns random pictures: large blobs, different ones in each picture, plus noise."""
    height, width = (size, size) if isinstance(size, int) else size

    def draw(generator: torch.Generator, count: int) -> torch.Tensor:
        blobs = F.interpolate(
            torch.randn(count, channels, 4, 4, generator=generator),
            size=(height, width),
            mode="bicubic",
            align_corners=False,
        )
        return blobs + 0.3 * torch.randn(count, channels, height, width, generator=generator)

    return draw


def tokens(vocabulary: int, length: int) -> Sampler:
    """Returns random sequences of token numbers."""

    def draw(generator: torch.Generator, count: int) -> torch.Tensor:
        return torch.randint(0, vocabulary, (count, length), generator=generator)

    return draw


def sounds(length: int) -> Sampler:
    """Returns random sounds: four tones of different pitch in each, plus noise."""

    def draw(generator: torch.Generator, count: int) -> torch.Tensor:
        pitch = 0.01 * 30 ** torch.rand(count, 4, 1, generator=generator)  # radians for each sample
        phase = 2 * math.pi * torch.rand(count, 4, 1, generator=generator)
        tones = torch.sin(torch.arange(length) * pitch + phase).sum(1)
        return 0.7 * tones + 0.1 * torch.randn(count, length, generator=generator)

    return draw


# ---- architectures ----


class UNet(nn.Module):
    """A U-net of three levels.

    The upward steps are a transposed convolution, a bilinear and a nearest resize. The result of each is
    concatenated with the skip connection of its level.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(3, width), _block(width, 2 * width), _block(2 * width, 4 * width)])
        self.bottom = _block(4 * width, 4 * width)
        self.up = nn.ConvTranspose2d(4 * width, 4 * width, 2, stride=2)
        self.merge = nn.ModuleList(
            [_block(8 * width, 2 * width), _block(4 * width, width), _block(2 * width, width)]
        )
        self.head = nn.Conv2d(width, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down[0](x)
        b = self.down[1](F.max_pool2d(a, 2))
        c = self.down[2](F.max_pool2d(b, 2))
        y = self.bottom(F.max_pool2d(c, 2))
        y = self.merge[0](torch.cat([self.up(y), c], 1))
        y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        y = self.merge[1](torch.cat([y, b], 1))
        y = F.interpolate(y, scale_factor=2, mode="nearest")
        y = self.merge[2](torch.cat([y, a], 1))
        return self.head(y)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class DsCnn(nn.Module):
    """Keyword spotting on a 49×10 spectrogram: one input channel, depthwise separable convolutions."""

    def __init__(self, width: int, keywords: int = 12) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, width, (10, 4), stride=2, padding=(5, 1)), nn.BatchNorm2d(width), nn.ReLU()]
        for _ in range(4):
            for conv in (nn.Conv2d(width, width, 3, padding=1, groups=width), nn.Conv2d(width, width, 1)):
                layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(width, keywords)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        x = F.avg_pool2d(x, x.shape[-2:])
        return self.head(self.dropout(x.flatten(1)))


class _Logits(nn.Module):
    """A transformers model that returns only its logits, one of several outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).logits


_Made = tuple[Callable[[], nn.Module], Sampler]


def _from_transformers(architecture: str, sampler: Sampler, **options: Any) -> _Made:
    def make() -> nn.Module:
        import transformers

        model = getattr(transformers, architecture)
        return _Logits(model(model.config_class(**options)))

    return make, sampler


def _mobilenet_v2(small: bool) -> _Made:
    size = 64 if small else 224
    return _from_transformers(
        "MobileNetV2ForImageClassification",
        pictures(size),
        image_size=size,
        depth_multiplier=0.35 if small else 1.0,
        num_labels=1000,
    )


def _resnet18(small: bool) -> _Made:
    return _from_transformers(
        "ResNetForImageClassification",
        pictures(64 if small else 224),
        embedding_size=16 if small else 64,
        hidden_sizes=[16, 32, 64, 128] if small else [64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=1000,
    )


def _resnet50(small: bool) -> _Made:
    return _from_transformers(
        "ResNetForImageClassification",
        pictures(64 if small else 224),
        embedding_size=16 if small else 64,
        hidden_sizes=[64, 128, 256, 512] if small else [256, 512, 1024, 2048],
        depths=[1, 2, 2, 1] if small else [3, 4, 6, 3],
        layer_type="bottleneck",
        num_labels=1000,
    )


def _efficientnet_b0(small: bool) -> _Made:
    size = 64 if small else 224
    return _from_transformers(
        "EfficientNetForImageClassification",
        pictures(size),
        image_size=size,
        width_coefficient=0.5 if small else 1.0,
        depth_coefficient=1.0,
        hidden_dim=640 if small else 1280,
        dropout_rate=0.2,
        num_labels=1000,
    )


def _convnext_tiny(small: bool) -> _Made:
    return _from_transformers(
        "ConvNextForImageClassification",
        pictures(64 if small else 224),
        hidden_sizes=[24, 48, 96, 192] if small else [96, 192, 384, 768],
        depths=[1, 1, 2, 1] if small else [3, 3, 9, 3],
        num_labels=1000,
    )


def _deit_tiny(small: bool) -> _Made:
    size = 64 if small else 224
    return _from_transformers(
        "DeiTForImageClassification",
        pictures(size),
        image_size=size,
        hidden_size=96 if small else 192,
        num_attention_heads=3,
        intermediate_size=384 if small else 768,
        num_hidden_layers=3 if small else 12,
        num_labels=1000,
    )


def _bert4(small: bool) -> _Made:
    vocabulary = 500 if small else 5000
    width = 64 if small else 256
    return _from_transformers(
        "BertForMaskedLM",
        tokens(vocabulary, 16 if small else 64),
        vocab_size=vocabulary,
        num_hidden_layers=2 if small else 4,
        hidden_size=width,
        num_attention_heads=4,
        intermediate_size=4 * width,
    )


def _llama2(small: bool) -> _Made:
    vocabulary = 500 if small else 2000
    return _from_transformers(
        "LlamaForCausalLM",
        tokens(vocabulary, 16 if small else 32),
        vocab_size=vocabulary,
        num_hidden_layers=2,
        hidden_size=64 if small else 256,
        intermediate_size=172 if small else 688,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )


def _mobilevit(small: bool) -> _Made:
    size = 64 if small else 256
    return _from_transformers(
        "MobileViTForImageClassification",
        pictures(size),
        image_size=size,
        hidden_sizes=[32, 40, 48] if small else [64, 80, 96],
        neck_hidden_sizes=[16, 16, 24, 48, 64, 80, 320],
        expand_ratio=2.0,
        num_labels=1000,
    )


def _swin(small: bool) -> _Made:
    size = 56 if small else 224
    return _from_transformers(
        "SwinForImageClassification",
        pictures(size),
        image_size=size,
        embed_dim=24 if small else 48,
        depths=[2, 2] if small else [2, 2, 2, 2],
        num_heads=[2, 4] if small else [2, 4, 8, 16],
        num_labels=1000,
    )


def _opt(small: bool) -> _Made:
    """Attention of several operators: a mask is added to the scores, and a softmax follows."""
    vocabulary = 500 if small else 2000
    width = 64 if small else 256
    return _from_transformers(
        "OPTForCausalLM",
        tokens(vocabulary, 16 if small else 32),
        vocab_size=vocabulary,
        max_position_embeddings=64,
        hidden_size=width,
        word_embed_proj_dim=width,
        ffn_dim=4 * width,
        num_hidden_layers=2 if small else 4,
        num_attention_heads=4,
        attn_implementation="eager",
        use_cache=False,
    )


def _qwen2(small: bool) -> _Made:
    vocabulary = 500 if small else 2000
    return _from_transformers(
        "Qwen2ForCausalLM",
        tokens(vocabulary, 16 if small else 32),
        vocab_size=vocabulary,
        num_hidden_layers=2 if small else 4,
        hidden_size=64 if small else 256,
        intermediate_size=172 if small else 688,
        num_attention_heads=8,
        num_key_value_heads=2,
        attn_implementation="eager",
        use_cache=False,
    )


def _wav2vec2(small: bool) -> _Made:
    width = 48 if small else 192
    return _from_transformers(
        "Wav2Vec2ForCTC",
        sounds(2000 if small else 16000),
        conv_dim=[32 if small else 128] * 7,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=2 if small else 4,
        num_attention_heads=4,
        num_conv_pos_embedding_groups=4,
        vocab_size=32,
    )


def _unet(small: bool) -> _Made:
    return lambda: UNet(8 if small else 16), pictures(32 if small else 64)


def _ds_cnn(small: bool) -> _Made:
    return lambda: DsCnn(16 if small else 64), pictures((49, 10), channels=1)


_MAKERS: dict[str, Callable[[bool], _Made]] = {
    "mobilenet_v2": _mobilenet_v2,
    "resnet18": _resnet18,
    "resnet50": _resnet50,
    "efficientnet_b0": _efficientnet_b0,
    "convnext_tiny": _convnext_tiny,
    "deit_tiny": _deit_tiny,
    "bert4": _bert4,
    "llama2": _llama2,
    "unet": _unet,
    "ds_cnn": _ds_cnn,
    "mobilevit": _mobilevit,
    "swin": _swin,
    "opt": _opt,
    "qwen2": _qwen2,
    "wav2vec2": _wav2vec2,
}
