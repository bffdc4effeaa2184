"""Causal language models of other projects: masks, positions and norms become integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from fx.quantizer.quantizers import convert
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

pytestmark = [
    pytest.mark.usefixtures("one_thread_without_traces"),
    pytest.mark.filterwarnings("ignore"),  # transformers and torch.export warn about their own code
]

WIDTH, VOCABULARY, LENGTH = 32, 50, 12
USUAL = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
GROUPED = USUAL | {"num_key_value_heads": 2}
# Class of transformers, and the fields of its configuration.
MODELS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {
        "vocab_size": VOCABULARY,
        "n_embd": WIDTH,
        "n_layer": 1,
        "n_head": 4,
        "n_positions": 32,
    },
    "LlamaForCausalLM": GROUPED,
    "Qwen2ForCausalLM": GROUPED,
    "MistralForCausalLM": GROUPED | {"sliding_window": 4},
    "GPTNeoXForCausalLM": USUAL,
    "OPTForCausalLM": {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "ffn_dim": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": 32,
        "word_embed_proj_dim": WIDTH,
    },
    "GemmaForCausalLM": USUAL | {"num_key_value_heads": 1, "head_dim": 8},
}


class Logits(nn.Module):
    """The scores of the next tokens; padded tokens come first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, attention_mask=present, use_cache=False).logits


def language_model(name: str, attention: str) -> nn.Module:
    import transformers

    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**MODELS[name], attn_implementation=attention)).eval()
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1:  # magnitudes as of trained networks
            is_table = any(part in key for part in ("embed", "wte", "wpe"))
            parameter.data = torch.randn(parameter.shape) * (0.5 if is_table else 0.7 * WIDTH**-0.5)
    return Logits(model)


def prompts(count: int = 4) -> list[tuple[torch.Tensor, ...]]:
    """Returns tokens and which of them are present; the first prompt has no padding."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for padded in range(count):
        present = torch.ones(1, LENGTH, dtype=torch.int64)
        present[0, :padded] = 0
        found.append((torch.randint(0, VOCABULARY, (1, LENGTH), generator=generator), present))
    return found


@pytest.mark.parametrize(
    ("name", "attention"), [*((name, "eager") for name in MODELS), ("LlamaForCausalLM", "sdpa")]
)
def test_a_causal_language_model_becomes_integers_and_stays_close(name: str, attention: str) -> None:
    module, samples = language_model(name, attention), prompts()
    converted = convert(module, samples, tosaic.Quantizer())
    lowered = tosaic.lower(torch.export.export(converted, samples[0]), target="TOSA-1.0+INT")
    assert not [value.name for value in lowered.graph.values if value.dtype in ("f32", "f16", "bf16")]
    signal = noise = 0.0
    for tokens, present in samples:
        result = lowered.run(tokens, present)
        seen = present[0].bool().numpy()  # rows of padded tokens have no meaning
        with torch.no_grad():
            expected = module(tokens, present).numpy()[:, seen]
        signal += float(np.sum(expected.astype(np.float64) ** 2))
        noise += float(np.sum((expected - result[:, seen]).astype(np.float64) ** 2))
    assert 10 * np.log10(signal / noise) >= 24
    reference = run_reference_model(lowered, *samples[1])
    assert reference.ok
    assert np.array_equal(reference.outputs, lowered.run(*samples[1]))
