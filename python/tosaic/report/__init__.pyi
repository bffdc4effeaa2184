# isort: skip_file
"""The public names of tosaic.report, in the order of the API page, each with the module that has it."""

from tosaic.report.bars import Bar as Bar
from tosaic.report.document import Report as Report
from tosaic.report.parts import Section as Section
from tosaic.report.parts import Table as Table
from tosaic.report.bars import bar_chart as bar_chart
from tosaic.report.registry import describe as describe
from tosaic.report.annotation import describe_annotation as describe_annotation
from tosaic.report.check import describe_check as describe_check
from tosaic.report.comparison import describe_comparison as describe_comparison
from tosaic.report.comparison import describe_diff as describe_diff
from tosaic.report.program import describe_graph as describe_graph
from tosaic.report.program import describe_io as describe_io
from tosaic.report.program import describe_lowered as describe_lowered
from tosaic.report.operators import describe_ops as describe_ops
from tosaic.report.pipeline import describe_pipeline as describe_pipeline
from tosaic.report.program import describe_program as describe_program
from tosaic.report.explanation import describe_quantization as describe_quantization
