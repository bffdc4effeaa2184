// annotation: how a quantizer wants the tensors of a graph to be quantized, as data. Code outside of the
// folder includes only this header, which includes the others.
//
//   CallGraph        the nodes of a graph of torch, by name, without torch
//   AnnotationPlan   slot -> spec, with the rule that set it
//   Selection        which nodes a rule is about
//   SharingGroups    which slots have one scale and zero point
//   rules            change plans
//   Resolution       everything that a report shows
#pragma once

#include "tosaic/quant/annotation/assign.h"
#include "tosaic/quant/annotation/call_graph.h"
#include "tosaic/quant/annotation/plan.h"
#include "tosaic/quant/annotation/resolve.h"
#include "tosaic/quant/annotation/rules.h"
#include "tosaic/quant/annotation/selection.h"
#include "tosaic/quant/annotation/sharing.h"
#include "tosaic/quant/annotation/spec.h"
