// Pipeline: the passes that lower a graph, in order, as a value that can be read, changed and copied.
//
//   Pipeline pipeline = default_pipeline(target::parse_target("TOSA-1.0+INT"));
//   pipeline.insert_after("decompose/simplify", my_pass);
//   Lowered lowered = lower(graph, pipeline);
//
// The order of all passes is defined here and nowhere else: `lower`, `problems`, comparisons, `tosaic passes`
// and the documentation read it from a Pipeline.
//
// Each pass is in one of five sections, and a name occurs once in a section. A pass is found by
// "section/name", or by its name alone if the name occurs once in the pipeline.
//
//   section    stage before -> after   what its passes do
//   simplify   exported -> exported    fold constants, remove duplicates and identities
//   quantize   exported -> integer     move quantization onto values, then use integers (profile INT)
//   decompose  exported or integer     expand composites into operators that TOSA has
//   layout     exported or integer     choose a dim order for each value
//   legalize   -> tosa                 replace all operators by TOSA's
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tosaic/passes/pass.h"
#include "tosaic/target/spec.h"

namespace tosaic::pipeline {

enum class Section : std::uint8_t { kSimplify, kQuantize, kDecompose, kLayout, kLegalize };
[[nodiscard]] std::string_view to_string(Section section);

struct Step {
  passes::Pass pass;
  Section section;

  [[nodiscard]] std::string id() const;  // "legalize/simplify"
};

class Pipeline {
 public:
  // A pipeline without passes.
  explicit Pipeline(const target::TargetSpec& target) : target_(target) {}

  [[nodiscard]] const target::TargetSpec& target() const { return target_; }
  [[nodiscard]] std::span<const Step> steps() const { return steps_; }

  // Adds the pass after all passes of its section. Throws InvalidGraph if the section has a pass of this
  // name.
  void append(Section section, passes::Pass pass);

  // `anchor` is the name of a pass, or "section/name". The new pass joins the section of the anchor. These
  // functions throw InvalidGraph if there is no such pass, if several have this name, or if the section would
  // have two passes of one name.
  void insert_before(std::string_view anchor, passes::Pass pass);
  void insert_after(std::string_view anchor, passes::Pass pass);
  void remove(std::string_view anchor);
  // Replaces a pass of the pipeline. Other passes that need the old pass before them (Pass::needs) accept the
  // new pass instead.
  void replace(std::string_view anchor, passes::Pass pass);

  [[nodiscard]] const Step& at(std::string_view anchor) const { return steps_[find(anchor)]; }

  // Throws InvalidGraph with every fault of the order: a pass that needs another one before it, a pass at a
  // place that no graph reaches at a stage that it takes, and no pass that makes stage tosa.
  void check() const;

 private:
  [[nodiscard]] std::size_t find(std::string_view anchor) const;
  void insert(std::size_t at, Section section, passes::Pass pass);
  void require_new(Section section, std::string_view name, std::size_t except) const;

  target::TargetSpec target_;
  std::vector<Step> steps_;
};

// Throws InvalidGraph unless the pass takes graphs at this stage. The error names the passes that have to run
// before the pass.
void require_stage_taken(const passes::Pass& pass, Stage stage);

// Compares this section with the same section of the target's default pipeline. Returns the names of the
// default passes whose work no pass of the pipeline does.
[[nodiscard]] std::vector<std::string> absent_passes(const Pipeline& pipeline, Section section);

// The passes that `lower` runs for a target: section quantize only if it has profile INT.
[[nodiscard]] Pipeline default_pipeline(const target::TargetSpec& target);

}  // namespace tosaic::pipeline
