"""`sampler_shaders`: the shaders that an installed ExecuTorch has for grid samplers."""

from __future__ import annotations

from importlib.resources import files

from tosaic.base.options import checked, invalid

_PACKAGE = "executorch.backends.arm.vgf.shaders"
_FILES = {
    "image": "grid_sampler_sampler",
    "image_align_corners": "grid_sampler_sampler_align_corners",
    "image_int8": "grid_sampler_sampler_int8",
    "image_int8_align_corners": "grid_sampler_sampler_int8_align_corners",
}


@checked
def sampler_shaders() -> dict[str, str]:
    """Returns the shaders of ExecuTorch's VGF flow, for `tosaic.lowering.custom_samplers`.

    Returns
    -------
    dict of str to str
        SPIR-V as base64, by form: see `tosaic.lowering.custom_samplers`.

    Raises
    ------
    ImportError
        ExecuTorch is not installed.
    InvalidGraph
        The installed ExecuTorch has no such shaders.
    """
    try:
        folder = files(_PACKAGE)
        return {
            form: "".join((folder / f"{name}.spirv.b64").read_text(encoding="utf-8").split())
            for form, name in _FILES.items()
        }
    except FileNotFoundError as missing:
        raise invalid(
            "sampler_shaders",
            "the installed ExecuTorch has no shaders for grid samplers",
            expected=f"files such as grid_sampler_sampler.spirv.b64 in {_PACKAGE}",
            got=str(missing),
        ) from missing
