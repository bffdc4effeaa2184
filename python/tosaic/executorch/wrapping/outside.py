"""Finds the nodes that stay outside of delegates: of quantized inputs and outputs, and of host operators.

::

    x ─▶ [permute ─▶ quantize] ─▶ ...                      a quantized input
    ... ─▶ [dequantize ─▶ view] ─▶ output                  a quantized output
    ... ─▶ [dequantize ─▶ sampler ─▶ quantize] ─▶ ...      a host operator

A dequantize node in front of an output or a host operator may have other readers. They would then read floats
from outside of their delegates. `with_own_dequantize` copies the dequantize node for the output or operator.
This is possible only before the program is partitioned.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.fx import Node

from tosaic.base.options import invalid, quant_mismatch, shown
from tosaic.executorch.wrapping.host_operators import HostOperators, bodies_of, modules_of
from tosaic.fx.io.graph_copy import copied_graph, with_names_of_results
from tosaic.fx.io.io_quantization import program_with
from tosaic.fx.io.quantize_calls import is_dequantize, is_move, is_quantize, is_whole_copy
from tosaic.fx.io.user_ports import UserPort, user_ports
from tosaic.ports.port_names import known_names, near_names, position_of
from tosaic.torch_operators.origins import place_of

Ports: TypeAlias = str | Sequence[str | int] | None
"""What `quantized_inputs` and `quantized_outputs` may be."""


@dataclass(frozen=True)
class Outside:
    """What a caller wants to stay outside of delegates.

    Attributes
    ----------
    where : str
        Name of the public function, for messages.
    inputs, outputs : None, "all" or sequence
    host : HostOperators
    """

    where: str
    inputs: Ports
    outputs: Ports
    host: HostOperators

    def nodes(self, program: Any) -> set[Node]:
        """Returns the nodes of an exported program, and of the bodies of its control flow.

        Raises
        ------
        InvalidGraph
            A port does not exist, or the program does not call a host operator.
        QuantMismatch
            An input that was named is not quantized, or an output is not dequantized.
        """
        self.host.require_calls(program.graph_module)
        found: set[Node] = set()
        for before in self._inputs_of(program).values():
            found |= before
        for _, chain in self._outputs_of(program):
            found.update(chain)
        for module in modules_of(program.graph_module):
            for node in module.graph.nodes:
                if self.host.match(node):
                    found |= around(node)
                elif self._runs_inside(node):
                    found.add(node)
        return found

    def with_own_dequantize(self, program: Any) -> Any:
        """Returns the program in which outputs and host operators share no dequantize node with others.

        The program itself is returned if it has no such node. It is not changed.
        """
        if not any(True for _ in self._shared(program)):
            return program
        graph, _ = copied_graph(program.graph)
        signature = program.graph_signature
        changed = program_with(program, graph, signature, program.example_inputs)
        while (shared := next(self._shared(changed), None)) is not None:
            shared.separate()
        signature = with_names_of_results(signature, changed.graph)
        return program_with(changed, changed.graph, signature, changed.example_inputs)

    # ---- ports ----

    def _inputs_of(self, program: Any) -> dict[int, set[Node]]:
        ports = user_ports(program).inputs
        found = {i: quantizers_of(port.node) for i, port in enumerate(ports)}
        chosen = self._chosen("quantized_inputs", self.inputs, ports, [bool(each) for each in found.values()])
        for i in chosen:
            if not found[i]:
                raise self._unquantized("quantized_inputs", ports[i], "an input that a quantize node reads")
        return {i: found[i] for i in chosen}

    def _outputs_of(self, program: Any) -> list[tuple[UserPort, list[Node]]]:
        ports = user_ports(program).outputs
        chains = [dequantizer_of(port.node) for port in ports]
        chosen = self._chosen("quantized_outputs", self.outputs, ports, [bool(each) for each in chains])
        for i in chosen:
            if not chains[i]:
                raise self._unquantized(
                    "quantized_outputs", ports[i], "an output that a dequantize node makes"
                )
        return [(ports[i], chains[i]) for i in chosen]

    def _chosen(
        self, option: str, wanted: Ports, ports: Sequence[UserPort], quantized: Sequence[bool]
    ) -> list[int]:
        if wanted is None:
            return []
        if isinstance(wanted, str):
            if not any(quantized):
                side = option.removeprefix("quantized_")
                raise quant_mismatch(
                    self.where,
                    f"'{option}' is 'all', and none of the {len(ports)} {side} is quantized",
                    expected="a quantized program",
                )
            return [i for i, is_quantized in enumerate(quantized) if is_quantized]
        named = [port.named for port in ports]
        places = []
        for key in wanted:
            place = position_of(key, named)
            if place is None:
                raise invalid(
                    self.where,
                    f"no such entry of '{option}'",
                    expected=known_names(named),
                    got=shown(key),
                    hint=near_names(key, named),
                )
            places.append(place)
        return sorted(set(places))

    def _unquantized(self, option: str, port: UserPort, expected: str) -> Exception:
        got = f"'{port.path}', which {_made_or_read(option, port.node)}"
        return quant_mismatch(
            self.where, f"an entry of '{option}' is not quantized", expected=expected, got=got
        )

    # ---- host operators ----

    def _runs_inside(self, node: Node) -> bool:
        """True for a call of control flow whose bodies call a host operator."""
        return bool(self.host.named) and any(self.host.overloads_in(body) for body in bodies_of(node))

    # ---- dequantize nodes with other readers ----

    def _shared(self, program: Any) -> Iterator[_Shared]:
        """Yields chains of an output or a host operator that other nodes read, too."""
        chosen = self._outputs_of(program)
        output = next(iter(reversed(program.graph.nodes)))
        for port, chain in chosen:
            own = sum(result is port.node for result in output.args[0])
            others = [p for p, _ in chosen if p.node is port.node]
            if _has_other_readers(chain, output) or own > len(others):
                yield _Shared(chain, output, port.spec)
        for node in program.graph.nodes:  # without bodies, which the copy of the program shares
            for chain in operand_chains(node) if self.host.match(node) else ():
                if _has_other_readers(chain, node):
                    yield _Shared(chain, node, None)


@dataclass(frozen=True)
class _Shared:
    """A dequantize node and the layout operators after it, some of which have other readers, too."""

    chain: list[Node]
    reader: Node
    result: int | None  # position among the results if the reader is the output node

    def separate(self) -> None:
        """Copies the chain for its reader."""
        made: dict[Node, Node] = {}
        last = self.chain[-1]
        for node in self.chain:
            with node.graph.inserting_after(last):
                last = made[node] = node.graph.node_copy(node, lambda each: made.get(each, each))
            last.meta = copy.copy(node.meta)
        if self.result is None:
            self.reader.replace_input_with(self.chain[-1], last)
            return
        (results,) = self.reader.args
        listed: Any = list(results)  # type: ignore[arg-type]
        listed[self.result] = last
        self.reader.args = (tuple(listed) if isinstance(results, tuple) else listed,)


def _has_other_readers(chain: Sequence[Node], reader: Node) -> bool:
    readers = [*chain[1:], reader]
    return any(set(node.users) != {after} for node, after in zip(chain, readers, strict=True))


# ---- chains ----


def quantizers_of(node: Node) -> set[Node]:
    """Returns the quantize nodes that read a value, and the layout operators in front of them."""
    found: set[Node] = set()
    for user in node.users:
        if is_quantize(user) and user.args[0] is node:
            found.add(user)
        elif is_move(user) and (behind := quantizers_of(user)):
            found |= {user, *behind}
    return found


def dequantizer_of(node: Any) -> list[Node]:
    """Returns the dequantize node that makes a value, and the layout operators after it; else nothing."""
    chain: list[Node] = []
    while isinstance(node, Node) and (is_move(node) or is_whole_copy(node)):
        chain.insert(0, node)
        node = node.args[1] if is_whole_copy(node) else node.all_input_nodes[0]
    return [node, *chain] if isinstance(node, Node) and is_dequantize(node) else []


def operand_chains(node: Node) -> list[list[Node]]:
    """Returns the dequantize nodes of the operands of a call, with the layout operators after each."""
    chains = [dequantizer_of(each) for each in node.all_input_nodes]
    return [chain for chain in chains if chain]


def around(node: Node) -> set[Node]:
    """Returns a call, with the dequantize nodes of its operands and the quantize nodes of its results."""
    found = {node, *(each for chain in operand_chains(node) for each in chain)}
    results = [node]
    while results:
        result = results.pop()
        found |= quantizers_of(result)
        taken = [user for user in result.users if user.target is operator.getitem]
        found.update(taken)
        results += taken
    return found


def _made_or_read(option: str, node: Node) -> str:
    if option == "quantized_outputs":
        return "is no result of a call" if node.op == "placeholder" else f"{place_of(node)} makes"
    readers = [place_of(user) for user in node.users if user.op != "output"]
    return f"{readers[0]} reads" if readers else "no call reads"
