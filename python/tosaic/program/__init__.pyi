# isort: skip_file
"""The public names of tosaic.program, in the order of the API page, each with the module that has it."""

from tosaic.program.program import from_graph as from_graph
from tosaic._core import Graph as Graph
from tosaic._core import Node as Node
from tosaic._core import Value as Value
from tosaic._core import Constant as Constant
from tosaic.program.prepared import Prepared as Prepared
from tosaic.program.models import GraphCall as GraphCall
from tosaic.program.comparison import CompareRow as CompareRow
from tosaic.program.comparison import ModelRow as ModelRow
from tosaic.program.comparison import Metrics as Metrics
