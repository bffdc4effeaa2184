"""ERRORIF tags of the suite's negative tests, and for each tag our rule that has to reject its tests.

A rule is identified by its message: it is a regular expression for the messages of the reader, of the checker
or of the executor. Some conditions can only be violated by a wrong type of the result; their tests are
rejected because the inferred type has another shape than the declared type.
"""

from __future__ import annotations

import re

_RESULT_SHAPE = r"the result has the wrong type: expected (?P<dtype>\w+)\[[^]]*\], got (?P=dtype)\["
_PARTIAL_WINDOW = r"the last window ends before the padded input on \w+: expected a multiple of \d+"
_OPERAND_COUNT = r"wrong number of operands: expected "
_TOO_SMALL = r"attribute '{}' is too small: expected entries of at least {}, got \["
_ZERO_POINT = (
    r"{0} of a float operand is not zero: expected 0, got |attribute '{1}' for \w+: expected 0, got "
)
_ZERO_POINT_OF_U16 = r"attribute '{}' for u16: expected 0 or 32768, got "
_UNSIGNED = r"'{}' {}: expected false, got true"
_PERMUTATION = r"attribute 'perm': expected a permutation of \d axes, got \["
_RANK_LEVEL = r"the rank is beyond level 8K: expected at most 6 \(MAX_RANK\), got \d"
_REGION_LIST = r"{} another (number of tensors|type at \d+)"
_DTYPE_OF_CONDITION = r"{} has the wrong dtype: expected bool, got "
_SIZE_OF_CONDITION = r"{} is not of size one: expected 1 element, got "

RULES: dict[str, str] = {
    # lists of operands and results
    "WrongInputList": _OPERAND_COUNT,
    "WrongOutputList": r"wrong number of results: expected \d, got \d",
    "ConcatNoInputList": _OPERAND_COUNT + "at least 1, got 0",
    # ranks and shapes of operands
    "WrongRank": r"wrong rank of operand|" + _RANK_LEVEL,
    "RankMismatch": r"operands differ in rank: expected rank \d, got \d|" + _RESULT_SHAPE,
    "InputRank1WrongRank": r"the operand shift has the wrong type: expected i8\[1\], got i8\[",
    "BroadcastShapesMismatch": r"shapes do not broadcast: expected extents that are equal or 1",
    "ConcatInputRankMismatch": r"wrong rank of operand 'inputs'",
    "ConcatInputDimMismatch": r"wrong shape of operand 'inputs'",
    "ConvBiasShapeMismatch": r"wrong extent of operand 'bias' on axis 0",
    "FFTInputShapeMismatch": r"wrong shape of operand 'input_imag'",
    # shapes of results
    "ArgmaxOutputRankMismatch": _RESULT_SHAPE,
    "ArgmaxOutputShapeMismatch": _RESULT_SHAPE,
    "BatchMismatch": _RESULT_SHAPE,
    "ChannelMismatch": _RESULT_SHAPE,
    "ConcatShapeSumMismatch": _RESULT_SHAPE,
    "ConvOutputShapeMismatch": _RESULT_SHAPE,
    "DimensionMismatch": _RESULT_SHAPE,
    "FFTOutputShapeMismatch": _RESULT_SHAPE,
    "PadOutputShapeMismatch": _RESULT_SHAPE,
    "PoolingOutputShapeMismatch": _RESULT_SHAPE,
    "ResizeOutputShapeMismatch": _RESULT_SHAPE,
    "ShapeOfAxisNotOne": _RESULT_SHAPE,
    "SizeOutputShapeMismatch": _RESULT_SHAPE,
    "TensorSizeInputOutputMismatch": _RESULT_SHAPE,
    "TileMultiplesOutputShapeMismatch": _RESULT_SHAPE,
    "TransposePermsOutputShapeMismatch": _RESULT_SHAPE,
    "ConvOutputShapeNonInteger": _PARTIAL_WINDOW,
    "PoolingOutputShapeNonInteger": _PARTIAL_WINDOW,
    "ResizeOutputShapeNonInteger": _PARTIAL_WINDOW,
    # attributes
    "AxisLargerRank": r"axis out of range: expected an axis in \[0, \d\), got \d",
    "AxisSmallerZero": r"axis out of range: expected an axis in \[0, \d\), got -\d",
    "DilationSmallerOne": _TOO_SMALL.format("dilation", 1),
    "KernelSmallerOne": _TOO_SMALL.format("kernel", 1),
    "StrideSmallerOne": _TOO_SMALL.format("stride", 1),
    "PadSmallerZero": _TOO_SMALL.format("(pad|before|after)", 0),
    "PadLargerEqualKernel": r"'pad' on \w+: expected less than the kernel|'out_pad' crops too much on \w+",
    "KernelNotPowerOfTwo": r"power of two",
    "IndexOutsideBounds": _PERMUTATION,
    "IndexUsedTwice": _PERMUTATION,
    "MaxSmallerMin": r"'min_val' and 'max_val': expected min_val <= max_val",
    "ScaleSmallerEqualZero": _TOO_SMALL.format("scale", 1),
    "ScaleNLargerMax": r"'scale' on \w+: expected a numerator of at most 2048",
    "ScaleDLargerMax": r"'scale' on \w+: expected a denominator below 16 times the numerator",
    "OffsetSmallerMin": r"'offset' on \w+: expected -\d+ to \d+, got -\d",
    "OffsetLargerEqualMax": r"'offset' on \w+: expected -\d+ to \d+, got \d",
    "BorderSmallerMin": r"'border' on \w+: expected -\d+ to \d+, got -\d",
    "BorderLargerEqualMax": r"'border' on \w+: expected -\d+ to \d+, got \d",
    "MaxDimExceeded": r"the (input|result) is too large on \w+: expected less than 16384, got ",
    "InputSizeStartLengthMismatch": r"wrong number of entries in '(start|size)': expected \d, got \[",
    "SizeSmallerEqualZero": _TOO_SMALL.format("size", 1),
    "StartSmallerZero": _TOO_SMALL.format("start", 0),
    "StartSizeOutsideBounds": r"the slice ends beyond the input on axis \d: expected at most \d",
    # zero points
    "InputZeroPointNotZero": _ZERO_POINT.format("input1?_zp", "(input|first|second)_zp"),
    "OutputZeroPointNotZero": _ZERO_POINT.format("output_zp", "(output|second)_zp"),
    "WeightZeroPointNotZero": _ZERO_POINT.format("weight_zp", "weight_zp"),
    "U16InputZeroPointNotValid": _ZERO_POINT_OF_U16.format("input_zp"),
    "U16OutputZeroPointNotValid": _ZERO_POINT_OF_U16.format("output_zp"),
    # rescale
    "RescaleI32InputUnsigned": _UNSIGNED.format("input_unsigned", "for i32"),
    "RescaleI32InputOutputUnsigned": _UNSIGNED.format("output_unsigned", "with an input of i32"),
    "RescaleI32OutputUnsigned": _UNSIGNED.format("output_unsigned", "for i32"),
    "RescaleI32OutputInputUnsigned": _UNSIGNED.format("input_unsigned", "with a result of i32"),
    "RescaleI48InputUnsigned": _UNSIGNED.format("input_unsigned", "for i48"),
    "RescaleI48InputOutputUnsigned": _UNSIGNED.format("output_unsigned", "with an input of i48"),
    "RescaleInputUnsignedOutputUnsigned": r"input and output are both unsigned: expected at most one of them",
    "RescalePerChannelRank0": r"wrong rank of operand 'input': expected rank 1 or more, got 0",
    "ScaleTrue": r"'scale32' for i48: expected false, got true",
    "ScaleNotTrue": r"'rounding_mode' without 'scale32': expected .*, got double_round",
    # control flow
    "CondIfCondNotMatchingBool": _DTYPE_OF_CONDITION.format("the condition"),
    "CondIfCondShapeNotSizeOne": _SIZE_OF_CONDITION.format("the condition"),
    "CondIfInputListThenGraphMismatch": _REGION_LIST.format("then_graph takes"),
    "CondIfInputListElseGraphMismatch": _REGION_LIST.format("else_graph takes"),
    "CondIfOutputListThenGraphMismatch": _REGION_LIST.format("then_graph gives"),
    "CondIfOutputListElseGraphMismatch": _REGION_LIST.format("else_graph gives"),
    "CondGraphOutputNotMatchingBool": _DTYPE_OF_CONDITION.format("the output of cond_graph"),
    "CondGraphOutputShapeNotSizeOne": _SIZE_OF_CONDITION.format("the output of cond_graph"),
    "InputListCondGraphMismatch": _REGION_LIST.format("cond_graph takes"),
    "InputListBodyGraphInputMismatch": _REGION_LIST.format("body_graph takes"),
    "InputListBodyGraphOutputMismatch": _REGION_LIST.format("body_graph gives"),
    "InputListOutputListMismatch": r"result \d+ differs from the operand in type"
    r"|the results differ from the operands in number",
}


def tag_of(test_name: str) -> str | None:
    """Returns ``WrongRank`` of ``argmax_ERRORIF_WrongRank_...``; None for a positive test."""
    found = re.search(r"_ERRORIF_([A-Za-z0-9]+)", test_name)
    return found.group(1) if found else None


def rejected_by_rule_of(tag: str, reasons: str) -> bool:
    """Returns whether one of the reasons matches the rule of the tag."""
    return tag in RULES and re.search(RULES[tag], reasons) is not None
