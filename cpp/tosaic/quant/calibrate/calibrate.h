// calibrate: from a float graph and samples to a graph with quantize and dequantize nodes. This is the header
// of the folder: code outside includes this one, and gets the others by it.
//
//   Statistic             what is remembered of the samples of a tensor
//   Calibration           runs samples, and feeds statistics with tensors
//   insert_quantization   writes the qparams that follow from them into the graph
#pragma once

#include "tosaic/quant/calibrate/calibration.h"
#include "tosaic/quant/calibrate/insert.h"
#include "tosaic/quant/calibrate/statistic.h"
