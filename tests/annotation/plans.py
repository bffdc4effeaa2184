"""Builds small graphs and plans for the tests: each line of a text is a node."""

from __future__ import annotations

from typing import Any

from tosaic.annotation import Call, CallGraph, Edge, GraphPort, Operand, Output, Plan

NAMES = {
    "conv2d": ("input", "weight", "bias"),
    "grid_sampler": ("input", "grid"),
    "add": ("self", "other"),
    "cat": ("tensors",),
    "embedding": ("weight", "indices"),
    "index": ("self", "indices"),
}


def graph_of(text: str, *, outputs: str, inputs: str = "", dtypes: dict[str, str] | None = None) -> CallGraph:
    """Reads lines such as ``c = conv2d(x, w)`` and ``y = cat([c, x])``; unknown names are inputs or weights.

    A name that begins with ``w``, and ``bias``, is a parameter. Inputs are those named, then those read.
    """
    calls: dict[str, Call] = {}
    ports = inputs.split()
    dtypes = dtypes or {}

    def known(name: str) -> str:
        if name not in calls:
            kind: Any = "get_attr" if name[0] == "w" or name == "bias" else "placeholder"
            calls[name] = Call(name, kind, dtype=dtypes.get(name, "f32"))
            if kind == "placeholder" and name not in ports:
                ports.append(name)
        return name

    for name in ports:
        known(name)
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, call = line.partition(" = ")
        op, _, read = call.rstrip(")").partition("(")
        in_list = read.startswith("[")
        operands = []
        for number, producer in enumerate(read.strip("[]").split(", ")):
            path = f"args[0][{number}]" if in_list else f"args[{number}]"
            names = NAMES.get(op, ("self",))
            operands.append(Operand(path, known(producer), names[0 if in_list else number]))
        scope = (("", "Net"), (f"block.{name}", f"torch.nn.{op.title()}"))
        calls[name] = Call(
            name,
            "call",
            f"aten.{op}.default",
            tuple(operands),
            scope,
            "model.py:7",
            dtypes.get(name, "f32"),
        )
    returned = outputs.split()
    calls["output"] = Call(
        "output", "output", operands=tuple(Operand(f"args[0][{i}]", n) for i, n in enumerate(returned))
    )
    return CallGraph(
        list(calls.values()),
        inputs=[GraphPort(f"in[{i}]", name) for i, name in enumerate(ports)],
        outputs=[GraphPort(f"out[{i}]", name) for i, name in enumerate(returned)],
    )


def slots(text: str) -> list[Any]:
    """Reads slots such as ``x>conv, conv``."""
    return [slot(part) for part in text.split(", ")]


def slot(text: str) -> Any:
    producer, arrow, user = text.partition(">")
    return Edge(producer, user) if arrow else Output(text)


def plan_of(graph: CallGraph, specs: dict[str, Any]) -> Plan:
    """Makes a plan from specs by slots: ``{"x>conv, conv": Observed()}``."""
    plan = Plan(graph, author="quantizer")
    for text, spec in specs.items():
        for each in slots(text):
            plan[each] = spec
    return plan


def specs_of(plan: Plan) -> dict[str, Any]:
    """Returns the specs by slots as `slot` reads them."""
    return {
        (f"{each.producer}>{each.user}" if isinstance(each, Edge) else each.node): plan[each] for each in plan
    }
