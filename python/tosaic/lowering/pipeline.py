"""The pipeline of a lowering as a value: the passes in order, which you can list, change and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tosaic import _core
from tosaic.base.defaults import TARGET
from tosaic.base.exception_notes import add_note
from tosaic.base.options import checked, invalid, refusal
from tosaic.base.reportable import Reportable

RUN_TARGET = "TOSA-1.0+FP+INT+int16+variable"
STAGES = ("exported", "quantized", "integer", "tosa")
PassFunction = Callable[[_core.Graph], "_core.Graph | None"]


class Pass:
    """A named step of a pipeline, which takes a graph and returns a changed graph.

    Parameters
    ----------
    name : str
        ``my-pass``. A name may occur once in each section of a pipeline.
    run : callable
        Takes a `Graph` and returns the changed graph, or None if it changes nothing. A lowering calls
        it once, with a graph at one of the stages in `takes`. `Rewriter` makes a changed graph.
    takes : sequence of str
        Stages: ``exported``, ``quantized``, ``integer``, ``tosa``; all of them by default. A pipeline does
        not run the pass on graphs at other stages.
    makes : str, optional
        The stage of the graphs that the pass returns. Without a value, it is the stage of the graph that was
        passed in.
    needs : sequence of str
        Names of passes that must run before this one.
    summary : str
        One sentence for `tosaic passes`.

    Raises
    ------
    InvalidGraph
        A stage is unknown, `run` is not callable, or the name has a ``/`` or a control character.

    Examples
    --------
    >>> import tosaic
    >>> tosaic.lowering.Pass("count", lambda graph: print(len(graph)), takes=["tosa"])
    <Pass 'count': tosa -> tosa>
    """

    def __init__(
        self,
        name: str,
        run: PassFunction,
        *,
        takes: Sequence[str] = STAGES,
        makes: str | None = None,
        needs: Sequence[str] = (),
        summary: str = "",
    ) -> None:
        if not _is_name(name):
            raise refusal("Pass", "name", "a string such as 'my-pass', without '/'", name)
        if not callable(run):
            raise refusal("Pass", "run", "a callable that takes a Graph and returns a Graph or None", run)
        if makes is not None and makes not in STAGES:
            raise refusal("Pass", "makes", f"one of {', '.join(STAGES)}, or None", makes)
        stages = _names("takes", takes, STAGES)
        if not stages:
            raise refusal("Pass", "takes", f"at least one of {', '.join(STAGES)}", takes)
        self._core = _core.Pass(
            name,
            _with_note(name, run),
            summary=str(summary),
            takes=stages,
            makes=makes,
            needs=_names("needs", needs),
            always=False,
        )

    @classmethod
    def of_core(cls, core: _core.Pass) -> Pass:
        """Returns a pass that the C++ package has."""
        made = cls.__new__(cls)
        made._core = core
        return made

    @property
    def core(self) -> _core.Pass:
        """The pass as the C++ package has it."""
        return self._core

    @property
    def name(self) -> str:
        """The name of the pass, such as ``fold-constants``."""
        return str(self._core.name)

    @property
    def summary(self) -> str:
        """What the pass does, in one sentence."""
        return str(self._core.summary)

    @property
    def takes(self) -> tuple[str, ...]:
        """The stages of the graphs on which the pass is run."""
        return tuple(self._core.takes)

    @property
    def makes(self) -> str | None:
        """The stage of the graph that the pass returns; None if the pass does not change the stage."""
        stage: str | None = self._core.makes
        return stage

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of passes that must run before this one."""
        return tuple(self._core.needs)

    @property
    def serves_as(self) -> tuple[str, ...]:
        """Names of the passes that this pass replaced in a pipeline."""
        return tuple(self._core.serves_as)

    @checked
    def run(self, graph: _core.Graph, *, target: str | None = None) -> _core.Graph:
        """Runs the pass on a graph, which is verified before and after.

        Parameters
        ----------
        graph : Graph
        target : str, optional
            The target that the pass may query. Default: a target with both profiles, ``int16`` and
            ``variable``.

        Returns
        -------
        Graph
            The same object if the pass changes nothing.

        Raises
        ------
        InvalidGraph
            The graph is broken or at a stage that the pass does not take, or the pass returned a graph that
            is broken or at another stage than it claims.
        """
        return self._core.run(graph, target=RUN_TARGET if target is None else target)

    def __reduce__(self) -> Any:
        raise _not_pickled(
            "tosaic.lowering.Pass", "Pickle the function, and make the pass where it is unpickled"
        )

    def __copy__(self) -> Pass:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Pass:
        return self

    def __repr__(self) -> str:
        return f"<Pass '{self.name}': {', '.join(self.takes)} -> {self.makes or 'the same stage'}>"


@dataclass(frozen=True)
class Step:
    """A pass at its place in a pipeline.

    Attributes
    ----------
    section : str
        ``simplify``, ``quantize``, ``decompose``, ``layout`` or ``legalize``.
    pass_ : Pass
    """

    section: str
    pass_: Pass

    @property
    def name(self) -> str:
        """The name of the pass."""
        return self.pass_.name

    @property
    def id(self) -> str:
        """The anchor ``section/name``, which names the pass without ambiguity."""
        return f"{self.section}/{self.name}"


class Pipeline(Reportable):
    """The passes that lower a program for a target, in order.

    ``Pipeline.default(target)`` is what `lower` runs. A pipeline is changed in place; `copy` makes another.
    Passes are in five sections, in this order:

    ============= ===================================================================
    simplify      constants, duplicates and identities, at stage exported
    quantize      integer arithmetic, for targets with profile INT
    decompose     composite operators become operators that TOSA has
    layout        each value gets a dim order
    legalize      operators become TOSA's
    ============= ===================================================================

    Methods take the name of a pass as `anchor`. If several sections have a pass of that name, write
    ``section/name``. An anchor that is unknown or ambiguous raises `InvalidGraph`.

    Examples
    --------
    >>> import tosaic
    >>> pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")
    >>> def count(graph):
    ...     print(len(graph), "nodes at stage", graph.stage)
    >>> pipeline.insert_after("legalize-tosa", count)
    >>> [step.name for step in pipeline][-4:]
    ['count', 'fold-constants', 'simplify', 'common-subexpressions']
    """

    def __init__(self, core: _core.Pipeline) -> None:
        if not isinstance(core, _core.Pipeline):
            raise refusal("Pipeline", "core", "a pipeline that Pipeline.default(target) makes", core)
        self._core = core

    @classmethod
    @checked
    def default(cls, target: str | None = None) -> Pipeline:
        """Returns the passes that `lower` runs for a target, ``"TOSA-1.0+FP"`` by default."""
        return cls(_core.Pipeline.default(TARGET if target is None else target))

    @property
    def core(self) -> _core.Pipeline:
        """The pipeline as the C++ package has it."""
        return self._core

    @property
    def target(self) -> str:
        """The target of the passes, such as ``TOSA-1.0+INT``."""
        return str(self._core.target)

    def __iter__(self) -> Iterator[Step]:
        return (Step(section, Pass.of_core(core)) for section, core in self._core.steps)

    def __len__(self) -> int:
        return len(self._core.steps)

    def __getitem__(self, anchor: str) -> Pass:
        return Pass.of_core(self._core.at(_anchor("Pipeline[...]", anchor)))

    def __contains__(self, anchor: object) -> bool:
        return any(anchor in (step.name, step.id) for step in self)

    def insert_before(self, anchor: str, pass_: Pass | PassFunction) -> None:
        """Puts a pass in front of another one.

        Parameters
        ----------
        anchor : str
        pass_ : Pass or callable
            A callable `Graph` -> `Graph` or None becomes a `Pass` that takes all stages, with the name of the
            function: ``my_pass`` is ``my-pass``.
        """
        self._core.insert_before(_anchor("insert_before", anchor), _pass("insert_before", pass_))

    def insert_after(self, anchor: str, pass_: Pass | PassFunction) -> None:
        """Puts a pass after another one; parameters as `insert_before`."""
        self._core.insert_after(_anchor("insert_after", anchor), _pass("insert_after", pass_))

    def replace(self, anchor: str, pass_: Pass | PassFunction) -> None:
        """Replaces a pass by another one, which also counts as the old one for passes that need it."""
        self._core.replace(_anchor("replace", anchor), _pass("replace", pass_))

    def remove(self, anchor: str) -> None:
        """Removes a pass. If another pass needs it, `check` and `lower` raise an error that names both."""
        self._core.remove(_anchor("remove", anchor))

    def copy(self) -> Pipeline:
        """Returns another pipeline of the same passes."""
        return Pipeline(self._core.copy())

    def __copy__(self) -> Pipeline:
        return self.copy()

    def __deepcopy__(self, _: dict[int, Any]) -> Pipeline:
        return self.copy()  # passes are immutable, so a shallow copy is enough

    def __reduce__(self) -> Any:
        raise _not_pickled(
            "tosaic.Pipeline", "Write a function that makes it, and call that where it is needed"
        )

    def check(self) -> None:
        """Checks the order of the passes. `lower` calls this method.

        Raises
        ------
        InvalidGraph
            A pass needs another one before it, a pass is at a place where no graph has a stage that the pass
            takes, or no pass makes a graph at stage tosa.
        """
        self._core.check()

    __repr__ = Reportable.__str__


def _with_note(name: str, run: PassFunction) -> PassFunction:
    """Wraps the function of a pass: its exceptions say which pass they come from."""

    def call(graph: _core.Graph) -> _core.Graph | None:
        try:
            return run(graph)
        except Exception as error:
            add_note(error, f"in pass '{name}' of the pipeline, on a graph at stage {graph.stage}")
            raise

    return call


def _not_pickled(kind: str, hint: str) -> Exception:
    return invalid(
        "pickle",
        f"a {kind} cannot be pickled",
        expected="values that consist of data",
        got="passes, which are functions",
        hint=hint,
    )


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name != "" and name.isprintable() and "/" not in name


def _names(option: str, names: Any, known: Sequence[str] = ()) -> list[str]:
    expected = f"a sequence of {', '.join(known)}" if known else "a sequence of names of passes"
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise refusal("Pass", option, expected, names)
    if any(not isinstance(name, str) or (known and name not in known) for name in names):
        raise refusal("Pass", option, expected, names)
    return list(names)


def _anchor(where: str, anchor: Any) -> str:
    if not isinstance(anchor, str):
        raise refusal(where, "anchor", "the name of a pass, or 'section/name'", anchor)
    return anchor


def _pass(where: str, pass_: Any) -> _core.Pass:
    if isinstance(pass_, Pass):
        return pass_.core
    if callable(pass_):
        name = getattr(pass_, "__name__", "") or type(pass_).__name__
        return Pass(name.replace("_", "-").strip("-"), pass_).core
    raise refusal(where, "pass_", "a tosaic.lowering.Pass, or a callable that takes a Graph", pass_)
