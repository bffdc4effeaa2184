#include "tosaic/pipeline/pipeline.h"

#include <algorithm>
#include <utility>

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
};

InvalidGraph refusal(std::string what, std::string expected, std::string got, std::string hint = {}) {
  return InvalidGraph({.where = "pipeline",
                       .what = std::move(what),
                       .expected = std::move(expected),
                       .got = std::move(got),
                       .hint = std::move(hint)});
}

std::string joined(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : ", ") + text;
  return out;
}

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

bool does_work_of(const passes::Pass& pass, std::string_view name) {
  return pass.name == name || std::ranges::find(pass.serves_as, name) != pass.serves_as.end();
}

// The stages that graphs may have behind a pass, given those that they may have before it.
passes::StageSet stages_after(const passes::Pass& pass, const passes::StageSet& before) {
  passes::StageSet after;
  for (const Stage stage : passes::stages_of(before)) {
    if (pass.takes.has(stage)) after.add(pass.stage_after(stage));
    if (!pass.takes.has(stage) || !pass.always) after.add(stage);
  }
  return after;
}

// The names of the default passes, of all profiles, whose results are at one of these stages.
std::string makers_of(const passes::StageSet& stages) {
  std::vector<std::string> names;
  for (const passes::Pass& pass : passes::all_passes())
    if (pass.makes && stages.has(*pass.makes)) names.push_back(quoted(pass.name));
  return joined(names);
}

// The passes of tosaic that take graphs at this stage and give another one.
std::string takers_of(Stage stage) {
  std::vector<std::string> names;
  for (const passes::Pass& pass : passes::all_passes())
    if (pass.takes.has(stage) && pass.stage_after(stage) != stage) names.push_back(quoted(pass.name));
  return joined(names);
}

}  // namespace

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
    throw refusal("the pipeline has no such pass", "one of " + joined(ids), quoted(anchor));
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
      throw refusal("the section has a pass of this name",
                    "a name that does not occur in section " + quoted(to_string(section)), quoted(name));
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
  passes::StageSet stages = {Stage::kExported};
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const passes::Pass& pass = steps_[i].pass;
    const std::string who = "pass " + quoted(steps_[i].id());
    for (const std::string& needed : pass.needs) {
      const auto does_it = [&](const Step& step) { return does_work_of(step.pass, needed); };
      const auto here = steps_.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::any_of(steps_.begin(), here, does_it)) continue;
      const bool is_behind = std::any_of(here, steps_.end(), does_it);
      fault(who + " needs pass " + quoted(needed) + " before it",
            quoted(needed) + " or a pass that serves as it",
            is_behind ? "it stands behind" : "the pipeline has none");
    }
    const bool is_reached =
        std::ranges::any_of(passes::stages_of(stages), [&](Stage stage) { return pass.takes.has(stage); });
    if (!is_reached)
      fault(who + " takes graphs at stage " + to_string(pass.takes),
            "a place behind " + makers_of(pass.takes),
            "a place where graphs are at stage " + to_string(stages));
    stages = stages_after(pass, stages);
  }
  for (const Stage stage : passes::stages_of(stages)) {
    const bool is_taken = std::ranges::any_of(steps_, [stage](const Step& step) {
      return step.pass.takes.has(stage) && step.pass.stage_after(stage) != stage;
    });
    if (stage == Stage::kTosa || stage == Stage::kExported || is_taken) continue;
    fault("no pass takes graphs on from stage " + std::string(to_string(stage)), takers_of(stage),
          "graphs at stage " + std::string(to_string(stage)) + " at the end");
  }
  if (!stages.has(Stage::kTosa))
    fault("no pass makes a graph at stage tosa", makers_of({Stage::kTosa}),
          "graphs at stage " + to_string(stages) + " at the end");
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
