"""`Calling`: converts the arguments of a call to arrays of a graph, and result arrays to the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tosaic.base.arrays import as_array
from tosaic.ports.port_names import by_position
from tosaic.ports.ports import caller_outputs, first_inputs, places_of_inputs
from tosaic.program.mutated_inputs import refuse_shared_memory, writer

if TYPE_CHECKING:
    from tosaic.program.runnable import Runnable


class Calling:
    """Converts the calls of a program. `inputs` and `outputs` are those of the program.

    A subclass converts single arguments.
    """

    def __init__(self, program: Runnable) -> None:
        self._program = program

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Returns the caller's argument for each of `inputs`."""
        named = self._named_inputs(args, kwargs)
        return self._program.signature.flatten(args, kwargs) if named is None else named

    def arrays_of(self, leaves: Sequence[Any]) -> list[Any]:
        """Returns the array of the caller's argument for each of `inputs`."""
        return [
            as_array(leaf, port.path or port.name, dtype=port.dtype)
            for leaf, port in zip(leaves, self._program.inputs, strict=True)
        ]

    def _named_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """Returns the arguments of a call that names each of `inputs`, in their order; None for other calls.

        If the keywords are exactly the parameters of the exported module, including those that were constants
        at export, the call is a call of the module, and the result is None, too.
        """
        signature = self._program.signature
        if args or signature.is_called_by(set(kwargs)):
            return None
        found = by_position(kwargs, [(port.path, port.name) for port in self._program.inputs])
        if found is None or len(found) != len(self._program.inputs):
            return None
        return [found[i] for i in range(len(found))]

    @cached_property
    def takes_arrays(self) -> bool:
        """True if the positional arguments of a call are the graph's inputs, not converted or written.

        Such calls go to the session directly. A run evicts all other code from the processor's caches, and
        analysing a call in Python then takes up to a millisecond.
        """
        places = self._program.signature.flat_places
        converts = type(self) is not Calling
        if places is None or self.written or converts:
            return False
        return [places[i] for i in places_of_inputs(self._program.graph)] == list(range(len(places)))

    def result_of(self, arrays: list[Any]) -> Any:
        """Returns the result of `Runnable.nested` for these arrays, with few steps if there is only one."""
        return arrays[0] if self._returns_array else self._program.nested(arrays)

    @cached_property
    def _returns_array(self) -> bool:
        """True if the program returns one array."""
        return (
            self._program.signature.outputs.kind == "leaf" and len(caller_outputs(self._program.graph)) == 1
        )

    @cached_property
    def written(self) -> tuple[tuple[int, int], ...]:
        """For each new value of a user input: its position in `outputs`, and the input's in `inputs`."""
        users = {index: position for position, index in enumerate(first_inputs(self._program.graph))}
        outputs = self._program.graph.outputs
        targets = [outputs[index].mutated_input for index in caller_outputs(self._program.graph)]
        return tuple((at, users[i]) for at, i in enumerate(targets) if i is not None)

    def writers(
        self, leaves: Sequence[Any], arrays: Sequence[Any]
    ) -> list[tuple[int, Callable[[Any], None]]]:
        """Returns functions that write new values into the arguments, each with its position in `outputs`.

        Raises
        ------
        LayoutMismatch
            An argument cannot be written, or shares memory with another one.
        """
        names = [port.path or port.name for port in self._program.inputs]
        writers = []
        for at, i in self.written:
            port = self._program.outputs[at]
            writers.append((at, writer(leaves[i], arrays[i], names[i], port.dtype, port.shape)))
            refuse_shared_memory(i, arrays, names)
        return writers
