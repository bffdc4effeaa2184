// calibrate: from a float graph and samples to a graph with quantize and dequantize nodes. Code outside of
// the folder includes only this header, which includes the others.
//
//   Statistic             a summary of the samples of a tensor, such as its range
//   Calibration           runs samples, and feeds statistics with tensors
//   insert_quantization   chooses qparams from statistics, and writes them into the graph
#pragma once

#include "tosaic/quant/calibrate/calibration.h"
#include "tosaic/quant/calibrate/insert.h"
#include "tosaic/quant/calibrate/statistic.h"
