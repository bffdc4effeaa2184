"""Lowers and runs programs with one build of the extension, as lines on its standard input say.

    python -I -S hardening_worker.py FOLDER

`FOLDER` has numpy and the package with the extension that is measured. Each line is a request in JSON and is
answered by a line of JSON: ``["load", PROGRAM, INPUTS, TARGET]`` with the digests of the file and of the
outputs, ``["lower", N]`` and ``["run", N]`` with the CPU seconds that N of them take.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any


def _cpu_seconds(body: Callable[[], object], count: int) -> float:
    gc.collect()
    start = time.process_time()
    for _ in range(count):
        body()
    return time.process_time() - start


def serve() -> None:
    import numpy as np
    import tosaic
    from tosaic import _core

    print(json.dumps(_core.__file__), flush=True)
    bodies: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        answer: Any
        if what == "load":
            archive, inputs, target = arguments
            lower = partial(tosaic.lower, tosaic.load(archive), target=target)
            lowered, x = lower(), np.load(inputs)
            prepared = lowered.prepare()
            bodies = {
                "lower": lambda lower=lower: lower().to_bytes(),
                "run": partial(prepared.run, x),
            }
            results = lowered.to_bytes(), np.asarray(prepared.run(x)).tobytes()
            answer = [hashlib.sha256(result).hexdigest() for result in results]
        else:
            answer = _cpu_seconds(bodies[what], *arguments)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    serve()
