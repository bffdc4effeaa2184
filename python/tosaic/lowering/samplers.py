"""Rewrites for devices that sample images in hardware: `rgba`, `rgba_pass` and `custom_samplers`.

Both rewrites are passes that the default pipeline does not have. `rgba` needs the caller's decision which
buffers have four channels, and `custom_samplers` needs shaders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tosaic import _core
from tosaic.base.options import checked, invalid, refusal
from tosaic.lowering.pipeline import Pass
from tosaic.ports.port_names import known_names, near_names, position_of
from tosaic.ports.ports import first_inputs
from tosaic.program.program import Program

FORMS = ("image", "image_align_corners", "image_int8", "image_int8_align_corners")
"""The forms of a sampler for which `custom_samplers` takes a shader."""

_Ports = Iterable[str | int]
_STAGES = ("exported", "quantized")


@checked
def rgba(program: Program, *, inputs: _Ports = (), outputs: _Ports = ()) -> Program:
    """Gives RGB images around grid samplers a fourth channel, so that buffers can be 4-channel textures.

    A sampler of three channels samples four: the image is padded with a channel of zeros, and the result is
    cut back to three channels where it is read. A convolution with constant weights reads four channels
    instead, with zeros as weights of the new one. Chains of samplers and elementwise operators stay at four
    channels. The results are unchanged.

    Parameters
    ----------
    program : Program
        At stage ``exported`` or ``quantized``.
    inputs, outputs : sequence of str or int
        Inputs and outputs, by path, name or index, that are passed with four channels: shape (N, 4, H, W)
        instead of (N, 3, H, W). The fourth channel of an input may have any finite content and has no
        influence on other channels. Images of other inputs and outputs stay as they are.

    Returns
    -------
    Program
        A changed copy; the same program if nothing changes.

    Raises
    ------
    InvalidGraph
        `program` is at another stage, or a chosen input or output is unknown or no image of three channels.

    Examples
    --------
    >>> import torch, tosaic
    >>> from torch import nn
    >>> class Warp(nn.Module):
    ...     def forward(self, image, grid):
    ...         return nn.functional.grid_sample(image, grid, align_corners=False)
    >>> args = torch.rand(1, 3, 8, 8), torch.rand(1, 4, 4, 2)
    >>> program = tosaic.from_exported(torch.export.export(Warp(), args))
    >>> tosaic.lowering.rgba(program, inputs=["image"], outputs=[0]).graph.inputs[0].value.shape
    (1, 4, 8, 8)
    """
    if not isinstance(program, Program):
        raise refusal("rgba", "program", "a tosaic.Program", program)
    graph = program.graph
    made = _core.rgba(graph, **_boundary(graph, inputs, outputs))
    if made is graph:
        return program
    return program.with_graph(made)


@checked
def rgba_pass() -> Pass:
    """Returns the pass of `rgba` for a pipeline, without changed inputs and outputs.

    In the pipeline of a target with profile INT, insert it after ``fold-qdq``; for other targets, before
    ``decompose``.

    Returns
    -------
    Pass
        ``rgba``, for the stages ``exported`` and ``quantized``.
    """
    return Pass(
        "rgba",
        lambda graph: _core.rgba(graph, inputs=[], outputs=[]),
        takes=_STAGES,
        summary="Gives RGB images around grid samplers a fourth channel.",
    )


@checked
def custom_samplers(shaders: Mapping[str, str]) -> Pass:
    """Returns a pass that represents grid samplers as ExecuTorch's VGF flow does: by ``tosa.custom``.

    The operator has the domain ``com.arm.VulkanCustomShader`` and a name that states mode, padding and
    align_corners. Its attributes are JSON with the shader and the Vulkan formats of its operands. tosaic runs
    such operators of every file with the kernel of the sampler.

    A sampler becomes this operator if its image has one batch and four channels (see `rgba_pass`), if its
    mode is bilinear or nearest, and if image and result are f32 or SNORM (int8, scale 1/127, zero point 0,
    range -127..127; then the grid is int8 with one scale). Others are expanded.

    Parameters
    ----------
    shaders : mapping of str to str
        SPIR-V as base64, by form: ``image``, ``image_align_corners``, ``image_int8`` and
        ``image_int8_align_corners``. A sampler whose form is absent is expanded.
        `tosaic.executorch.sampler_shaders` returns the shaders of an installed ExecuTorch.

    Returns
    -------
    Pass
        ``custom-samplers``, for the stages ``exported`` and ``quantized``. Insert it after ``rgba``.

    Raises
    ------
    InvalidGraph
        `shaders` has an unknown form.
    """
    unknown = [str(form) for form in shaders if form not in FORMS]
    if unknown:
        raise refusal("custom_samplers", "shaders", f"forms among {', '.join(FORMS)}", unknown[0])
    held = dict(shaders)
    return Pass(
        "custom-samplers",
        lambda graph: _core.custom_samplers(graph, shaders=held),
        takes=_STAGES,
        summary="Grid samplers become custom operators with shaders.",
    )


def _boundary(graph: _core.Graph, inputs: _Ports, outputs: _Ports) -> dict[str, list[bool]]:
    of_user = {
        "inputs": first_inputs(graph),
        "outputs": [i for i, port in enumerate(graph.outputs) if port.kind == "user"],
    }
    chosen: dict[str, list[bool]] = {}
    for side, wanted in (("inputs", inputs), ("outputs", outputs)):
        ports: Any = getattr(graph, side)
        named = [(ports[i].path, ports[i].value.name) for i in of_user[side]]
        chosen[side] = [False] * len(ports)
        for key in wanted:
            position = position_of(key, named)
            if position is None:
                raise invalid(
                    "rgba",
                    f"'{side}' names no {side[:-1]} of the program",
                    expected=known_names(named),
                    got=repr(key),
                    hint=near_names(key, named),
                )
            chosen[side][of_user[side][position]] = True
    return chosen
