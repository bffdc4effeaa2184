"""Saves a program as one file. `tosaic.program.archive` describes the format and reads it."""

from __future__ import annotations

import hashlib
import io
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic.base.writing import whole_file
from tosaic.ports.signature_json import signature_to_json
from tosaic.program.constants_in_text import constants_in_text_order, plain_array

if TYPE_CHECKING:
    from tosaic.program.program import Program

FORMAT = "tosaic program"
VERSION = 1
MANIFEST = "manifest.json"
GRAPH = "graph.txt"
_MOMENT = (1980, 1, 1, 0, 0, 0)  # time stamp of all members, so that the bytes do not depend on the time
_write_array: Any = np.lib.format.write_array


def save(program: Program, path: str | os.PathLike[str]) -> None:
    """Writes `program`; see `tosaic.Program.save`."""
    import zipfile

    weights: list[dict[str, Any]] = []
    members: dict[bytes, str] = {}  # by digest of the content
    with whole_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for key, constant in constants_in_text_order(program.graph):
            name, dtype, shape, occurrence = key
            buffer = io.BytesIO()
            _write_array(buffer, plain_array(constant.array), version=(1, 0), allow_pickle=False)
            content = buffer.getbuffer()
            digest = hashlib.sha256(content).digest()
            if digest not in members:
                members[digest] = f"weights/{len(members)}.npy"
                archive.writestr(zipfile.ZipInfo(members[digest], _MOMENT), content)
            weights.append(
                {
                    "name": name,
                    "dtype": dtype,
                    "shape": shape,
                    "occurrence": occurrence,
                    "file": members[digest],
                }
            )
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "signature": signature_to_json(program.signature),
            "weights": weights,
        }
        if program.module_types:
            manifest["module_types"] = program.module_types
        archive.writestr(zipfile.ZipInfo(GRAPH, _MOMENT), program.graph.text())
        archive.writestr(zipfile.ZipInfo(MANIFEST, _MOMENT), json.dumps(manifest, indent=1))
