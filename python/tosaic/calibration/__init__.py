"""Quantizes float programs on the core's executor, without torch.

program --prepared_graph--> graph whose constants and batch norms are folded
        --plan_program----> plan: which tensors get which integers        (tosaic.annotation, quant/planner)
        --calibrate-------> statistics of the tensors, over all samples   (quant/calibrate)
        --choose----------> qparams of each slot of the plan
        --quantized_graph-> graph at stage quantized
"""

from __future__ import annotations

from tosaic.base.public_names import names_of_stub

__getattr__, __dir__ = names_of_stub(__name__, __path__[0])
