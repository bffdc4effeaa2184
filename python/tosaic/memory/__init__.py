"""Memory plans over whole programs, host and delegates: plans by tosaic, and plans in ``.pte`` files.

::

    schedule        the computation of a program, step by step: values, reads and writes of each step
    sharing         which values share memory, and how long each value is needed
    buffers         the parts of a plan: buffers and arenas
    plan            `MemoryPlan`: a place for each value, in arenas; the proven bound of each arena
    plan_options    the options of a plan
    planner         makes the plan: arenas, offsets, bounds
    spread          several memories of limited size: the memory of each buffer
    read_plan       plans in JSON and CSV files
    check           runs a schedule on the planned places, without knowing how they were found
    of_program      the schedule of a program, a lowered program or a split program
"""

from __future__ import annotations

from tosaic.base.public_names import names_of_stub

__getattr__, __dir__ = names_of_stub(__name__, __path__[0])
