#include "tosaic/exec/compare/rows.h"

#include "tosaic/exec/compare/numbers.h"

namespace tosaic::exec {
namespace {

OriginRef leaf_named(const OriginRef& origin, const std::string& fx_name) {
  for (const OriginRef& leaf : leaves(origin))
    if (leaf->fx_name == fx_name) return leaf;
  return nullptr;
}

}  // namespace

RowWriter::RowWriter(const Graph* a, const FxNodes& fx, const Matcher& matcher, double threshold_db)
    : a_(a), fx_(fx), matcher_(matcher) {
  out_.threshold_db = threshold_db;
}

void RowWriter::add(const Reference& reference, const std::map<FxResult, ReplayedResult>& replayed) {
  if (const auto found = replayed.find(reference.of); found != replayed.end()) {
    if (found->second.rounded_later)
      out_.unmatched.push_back({fx_.label(reference.of), "rounded in a later node of b"});
    else
      add_row(reference, found->second);
    return;
  }
  const std::vector<Match> candidates = matcher_.candidates(reference, 0);
  if (candidates.empty())
    out_.unmatched.push_back({fx_.label(reference.of), matcher_.mismatch_reason(reference)});
  else
    add_row(reference, {matcher_.nearest(reference, candidates), nullptr, {}, {}, {}});
}

void RowWriter::add_unmatched(FxId fx, const std::string& reason) {
  out_.unmatched.push_back({fx_.name(fx), reason});
}

void RowWriter::add_row(const Reference& reference, const ReplayedResult& found) {
  const Graph& b = matcher_.values().graph();
  const Match& match = found.match;
  const Node& node_b = *b.producer(match.value);
  CompareRow row;
  row.fx_name = fx_.label(reference.of);
  row.op_b = info(node_b.op).name;
  row.value_b = b.value(match.value).name;
  if (found.node != nullptr) {
    row.op_a = info(found.node->op).name;
    row.value_a = a_->value(a_->result(*found.node, reference.of.index)).name;
  }
  const OriginRef& from = found.node != nullptr ? found.node->origin : node_b.origin;
  if (const OriginRef leaf = leaf_named(from, fx_.name(reference.of.fx))) {
    row.module_path = leaf->module_path;
    row.source = leaf->source();
  }
  const Held value = matcher_.in_axes(match, reference);
  const Held expected = as_numbers(reference.array, reference.qparams);
  row.total = compute_metrics(expected.view, value.view, matcher_.metrics_options(reference, match.value));
  row.local = found.local;
  row.inherited = found.inherited;
  row.local_share = found.share;
  if (!out_.first_divergence && row.total.sqnr_db < out_.threshold_db)
    out_.first_divergence = out_.rows.size();
  out_.rows.push_back(std::move(row));
}

}  // namespace tosaic::exec
