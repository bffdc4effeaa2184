"""Memory plans over whole programs: host and delegates, ours and those that ``.pte`` files have.

::

    schedule        what a program computes, step by step: values, what each step reads and writes
    sharing         which value is in the memory of another one, and how long each is needed
    buffers         the parts of a plan: buffers and arenas
    plan            `MemoryPlan`: a place for each value, in arenas; the proven bound of each arena
    plan_options    what a plan is made for
    planner         makes the plan: arenas, offsets, bounds
    spread          several memories of limited size: which buffer goes where
    read_plan       plans in JSON and CSV files
    check           runs a schedule on the planned places, without knowing how they were found
    of_program      the schedule of a program, a lowered program or a split program
"""

from __future__ import annotations

from tosaic.base.public_names import names_of_stub

__getattr__, __dir__ = names_of_stub(__name__, __path__[0])
