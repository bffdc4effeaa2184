// accuracy: tools that make a quantized network closer to its float network.
//
//   before calibration   equalize(), smooth()              scales move between weights and activations
//   during calibration   SecondMoments, ChannelAbsMax, ChannelSums
//   after calibration    group_scales(), gptq()            weights are rounded
//   afterwards           correct_bias()                    mean errors move into biases
//                        weight_error()                    how much the rounding of a weight costs
//
// The state of a statistic does not depend on the order of samples, on how samples are split into calls and
// merged, or on the number of workers: all sums in it are sums of integers.
#pragma once

#include "tosaic/quant/accuracy/channel_statistics.h"
#include "tosaic/quant/accuracy/contraction.h"
#include "tosaic/quant/accuracy/correct_bias.h"
#include "tosaic/quant/accuracy/equalize.h"
#include "tosaic/quant/accuracy/gptq.h"
#include "tosaic/quant/accuracy/group_scales.h"
#include "tosaic/quant/accuracy/second_moments.h"
#include "tosaic/quant/accuracy/smooth.h"
#include "tosaic/quant/accuracy/weight_error.h"
