#include "tosaic/pipeline/pipeline.h"

#include <algorithm>
#include <utility>

#include "tosaic/base/error_text.h"
#include "tosaic/base/near_names.h"

namespace tosaic::pipeline {
namespace {

struct DefaultStep {
  Section section;
  std::string_view name;
};

constexpr DefaultStep kDefault[] = {
    {Section::kSimplify, "fold-constants"},
    {Section::kSimplify, "dead-code"},
    {Section::kSimplify, "common-subexpressions"},
    {Section::kSimplify, "simplify"},
    {Section::kSimplify, "fold-batch-norm"},
    {Section::kQuantize, "widen-halves"},
    {Section::kQuantize, "fuse-composites"},
    {Section::kQuantize, "bound-masks"},
    {Section::kQuantize, "bound-numbers"},
    {Section::kQuantize, "fold-qdq"},
    {Section::kQuantize, "fold-constants"},
    {Section::kQuantize, "lower-to-integer"},
    {Section::kQuantize, "quantize-boundary"},
    {Section::kDecompose, "decompose"},
    {Section::kDecompose, "fold-constants"},
    {Section::kDecompose, "sink-reshapes"},
    {Section::kDecompose, "simplify"},
    {Section::kDecompose, "common-subexpressions"},
    {Section::kDecompose, "choose-shapes"},
    {Section::kLayout, "assign-dim-order"},
    {Section::kLegalize, "legalize-tosa"},
    {Section::kLegalize, "fold-constants"},
    {Section::kLegalize, "simplify"},
    {Section::kLegalize, "common-subexpressions"},
    {Section::kLegalize, "store-constants"},
    {Section::kLegalize, "unit-axes"},
    {Section::kLegalize, "narrow-operands"},
    {Section::kLegalize, "split-tables"},
    {Section::kLegalize, "split-rescales"},
    {Section::kLegalize, "split-attentions"},
};

InvalidGraph refusal(std::string what, std::string expected, std::string got, std::string hint = {}) {
  return InvalidGraph({.where = "pipeline",
                       .what = std::move(what),
                       .expected = std::move(expected),
                       .got = std::move(got),
                       .hint = std::move(hint)});
}

bool does_work_of(const passes::Pass& pass, std::string_view name) {
  return pass.name == name || std::ranges::find(pass.serves_as, name) != pass.serves_as.end();
}

// The stages that graphs may have after a pass, given those that they may have before it.
passes::StageSet stages_after(const passes::Pass& pass, const passes::StageSet& before) {
  passes::StageSet after;
  for (const Stage stage : passes::stages_of(before)) {
    if (pass.takes.has(stage)) after.add(pass.stage_after(stage));
    if (!pass.takes.has(stage) || !pass.always) after.add(stage);
  }
  return after;
}

// The passes of default pipelines, of all profiles, that make graphs at one of these stages.
std::string makers_of(const passes::StageSet& stages) {
  std::vector<std::string> names;
  for (const DefaultStep& step : kDefault) {
    const passes::Pass& pass = *passes::find_pass(step.name);
    if (pass.makes && stages.has(*pass.makes)) names.push_back(quoted(pass.name));
  }
  return joined(names);
}

// Says, for an error, where in the pipeline the pass of step `at` could be: at a place where graphs have one
// of the stages `takes`. before[i] has the stages that graphs may have in front of step i.
std::string place_for(const passes::StageSet& takes, std::size_t at, std::span<const Step> steps,
                      const std::vector<passes::StageSet>& before) {
  const auto is_reached = [&](std::size_t i) {
    return std::ranges::any_of(passes::stages_of(before[i]), [&](Stage stage) { return takes.has(stage); });
  };
  for (std::size_t i = at; i-- > 0;)
    if (is_reached(i)) return "a place before " + quoted(steps[i].id());
  for (std::size_t i = at + 1; i < steps.size(); ++i)
    if (is_reached(i)) return "a place after " + quoted(steps[i - 1].id());
  return "a place after " + makers_of(takes);
}

// Says why a pipeline for the target has no pass of this name, and what the user can do.
std::string why_absent(std::string_view anchor, std::span<const Step> steps,
                       const target::TargetSpec& target) {
  for (const DefaultStep& step : kDefault) {
    if (step.name != anchor && std::string(to_string(step.section)) + "/" + std::string(step.name) != anchor)
      continue;
    if (step.section == Section::kQuantize && !target.has(target::Profile::kInt))
      return "Passes of section quantize need a target with profile INT, such as " + to_string(target) +
             "+INT";
    return quoted(anchor) + " was removed from this pipeline";
  }
  std::vector<KnownName> known;
  for (const Step& each : steps) known.push_back({each.id(), each.pass.name});
  return did_you_mean(anchor, known);
}

}  // namespace

void require_stage_taken(const passes::Pass& pass, Stage stage) {
  if (pass.takes.has(stage)) return;
  if (pass.takes.empty())
    throw refusal("pass " + quoted(pass.name) + " takes no stage", "Pass::takes, one stage or more",
                  "an empty set");
  std::vector<std::string> needed;
  for (const std::string& name : pass.needs) needed.push_back(quoted(name));
  std::string hint;
  if (!needed.empty())
    hint = "Run " + joined(needed) + " before it";
  else if (const std::string givers = makers_of(pass.takes); !givers.empty())
    hint = "Graphs at stage " + to_string(pass.takes) + " are made by " + givers;
  throw refusal("pass " + quoted(pass.name) + " takes graphs at stage " + to_string(pass.takes),
                "a graph at stage " + to_string(pass.takes),
                "a graph at stage " + std::string(to_string(stage)), std::move(hint));
}

std::vector<std::string> absent_passes(const Pipeline& pipeline, Section section) {
  std::vector<std::string> absent;
  const Pipeline full = default_pipeline(pipeline.target());
  for (const Step& step : full.steps()) {
    const auto serves = [&](const Step& own) { return does_work_of(own.pass, step.pass.name); };
    if (step.section == section && std::ranges::none_of(pipeline.steps(), serves))
      absent.push_back(step.pass.name);
  }
  return absent;
}

std::string_view to_string(Section section) {
  switch (section) {
    case Section::kSimplify:
      return "simplify";
    case Section::kQuantize:
      return "quantize";
    case Section::kDecompose:
      return "decompose";
    case Section::kLayout:
      return "layout";
    case Section::kLegalize:
      return "legalize";
  }
  return "";
}

std::string Step::id() const { return std::string(to_string(section)) + "/" + pass.name; }

std::size_t Pipeline::find(std::string_view anchor) const {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < steps_.size(); ++i)
    if (steps_[i].pass.name == anchor || steps_[i].id() == anchor) found.push_back(i);
  if (found.size() == 1) return found.front();
  std::vector<std::string> ids;
  if (found.empty()) {
    for (const Step& step : steps_) ids.push_back(step.id());
    throw refusal("the pipeline has no such pass", "one of " + joined(ids), quoted(anchor),
                  why_absent(anchor, steps_, target_));
  }
  for (const std::size_t i : found) ids.push_back(steps_[i].id());
  throw refusal("several passes of the pipeline have this name", "one of " + joined(ids), quoted(anchor));
}

void Pipeline::require_new(Section section, std::string_view name, std::size_t except) const {
  if (name.empty()) throw refusal("a pass has no name", "a name such as 'my-pass'", "''");
  if (name.find('/') != std::string_view::npos)
    throw refusal("the name of a pass contains '/'", "a name such as 'my-pass'", quoted(name));
  for (std::size_t i = 0; i < steps_.size(); ++i)
    if (i != except && steps_[i].section == section && steps_[i].pass.name == name)
      throw refusal(
          "the section has a pass of this name",
          "a name that does not occur in section " + quoted(to_string(section)), quoted(name),
          "Give it a name of its own: tosaic.lowering.Pass('my-pass', function), in C++ Pass::name");
}

void Pipeline::insert(std::size_t at, Section section, passes::Pass pass) {
  require_new(section, pass.name, steps_.size());
  steps_.insert(steps_.begin() + static_cast<std::ptrdiff_t>(at), {std::move(pass), section});
}

void Pipeline::append(Section section, passes::Pass pass) {
  const auto behind =
      std::find_if(steps_.begin(), steps_.end(), [=](const Step& step) { return step.section > section; });
  insert(static_cast<std::size_t>(behind - steps_.begin()), section, std::move(pass));
}

void Pipeline::insert_before(std::string_view anchor, passes::Pass pass) {
  const std::size_t at = find(anchor);
  insert(at, steps_[at].section, std::move(pass));
}

void Pipeline::insert_after(std::string_view anchor, passes::Pass pass) {
  const std::size_t at = find(anchor);
  insert(at + 1, steps_[at].section, std::move(pass));
}

void Pipeline::remove(std::string_view anchor) {
  steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(find(anchor)));
}

void Pipeline::replace(std::string_view anchor, passes::Pass pass) {
  const std::size_t at = find(anchor);
  require_new(steps_[at].section, pass.name, at);
  const passes::Pass& old = steps_[at].pass;
  pass.serves_as.push_back(old.name);
  pass.serves_as.insert(pass.serves_as.end(), old.serves_as.begin(), old.serves_as.end());
  steps_[at].pass = std::move(pass);
}

void Pipeline::check() const {
  std::vector<ErrorParts> faults;
  const auto fault = [&faults](std::string what, std::string expected, std::string got) {
    faults.push_back({.where = "pipeline",
                      .what = std::move(what),
                      .expected = std::move(expected),
                      .got = std::move(got)});
  };
  std::vector<passes::StageSet> before = {{Stage::kExported}};
  for (const Step& step : steps_) before.push_back(stages_after(step.pass, before.back()));
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const passes::Pass& pass = steps_[i].pass;
    const std::string who = "pass " + quoted(steps_[i].id());
    if (!pass.run) fault(who + " has no function", "Pass::run, a function of the graph", "an empty function");
    if (pass.takes.empty()) fault(who + " takes no stage", "Pass::takes, one stage or more", "an empty set");
    for (const std::string& needed : pass.needs) {
      const auto does_it = [&](const Step& step) { return does_work_of(step.pass, needed); };
      const auto here = steps_.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::any_of(steps_.begin(), here, does_it)) continue;
      const bool is_behind = std::any_of(here, steps_.end(), does_it);
      fault(who + " needs pass " + quoted(needed) + " before it",
            quoted(needed) + " or a pass that serves as it",
            is_behind ? "it stands after it" : "the pipeline has none");
    }
    const bool is_reached =
        std::ranges::any_of(passes::stages_of(before[i]), [&](Stage stage) { return pass.takes.has(stage); });
    if (!is_reached && !pass.takes.empty())
      fault(who + " takes graphs at stage " + to_string(pass.takes), place_for(pass.takes, i, steps_, before),
            "a place where graphs are at stage " + to_string(before[i]));
  }
  if (!before.back().has(Stage::kTosa))
    fault("no pass makes a graph at stage tosa", makers_of({Stage::kTosa}),
          "graphs at stage " + to_string(before.back()) + " at the end");
  if (!faults.empty()) throw InvalidGraph("pipeline", "faults of the order of passes", faults);
}

Pipeline default_pipeline(const target::TargetSpec& target) {
  Pipeline pipeline(target);
  for (const DefaultStep& step : kDefault)
    if (step.section != Section::kQuantize || target.has(target::Profile::kInt))
      pipeline.append(step.section, *passes::find_pass(step.name));
  return pipeline;
}

}  // namespace tosaic::pipeline
