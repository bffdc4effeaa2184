// calibration: runs samples and observes tensors while they are computed.
//
//   watches     %relu -> 0, %cat -> 1, %x -> 1         tensors, and the statistics that they feed
//   statistics  0: Histogram  1: Range                 one for each group of tensors that share a scale
//
// A tensor is observed directly after its node has run, while it is in the cache. Kernels stay fused where no
// tensor inside of a fused chain is observed. A tensor that repeats the elements of another one is not
// observed if both feed the same statistic: the other tensor's elements count as often as they are repeated.
//
//   %relu -> 0, %pad = pad(%relu) -> 0     %relu is observed, each element counts twice; and zeros are added
//
// Each sample runs from the initial values of all states. A graph with states also runs the samples one after
// another (see Calibration::run()).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tosaic/exec/session.h"
#include "tosaic/quant/calibrate/statistic.h"

namespace tosaic::quant {

// A tensor by the name of its value: an input, a state, a constant or the result of a node. Constants are
// observed once in each run.
struct Watch {
  std::string value;
  std::uint32_t statistic = 0;
  bool finite = true;  // throw on infinities and NaN; otherwise leave them out
};

// The graph with outputs for those watched values that Calibration would not find after operators are
// expanded: values that nobody reads, whose nodes passes would remove; results of operators that run as
// expansions; and values that `runs`, the graph that will run, lacks. An expansion may return an operand as
// it is, or not read one (a slice_scatter that writes nothing, or everything). Returns the same graph if
// there are no such values.
[[nodiscard]] std::shared_ptr<const Graph> with_watched_outputs(std::shared_ptr<const Graph> graph,
                                                                const std::vector<Watch>& watches,
                                                                const Graph* runs = nullptr);
// Whether the graph has a value for each watch.
[[nodiscard]] bool has_all(const Graph& runs, const std::vector<Watch>& watches);

class Calibration {
 public:
  // Throws InvalidGraph if the graph has no such value or if it is not a tensor of floats, and InternalError
  // for a statistic that does not exist.
  Calibration(const exec::Prepared& prepared, const std::vector<Watch>& watches,
              std::vector<Statistic> statistics);

  // Runs a sample: one array for each user input of the graph. A graph with states runs each sample twice:
  // from the initial values, and as the call that follows the samples before. So the statistics include
  // numbers that successive calls write to a state, and numbers that are computed from the state. Throws what
  // exec::Session::run() throws, and InvalidGraph, which names the tensor, if a tensor that has to be finite
  // has infinities or NaN. After an error the statistics hold only a part of the sample: do not use them.
  void run(std::span<const exec::ArrayView> inputs, const std::function<void()>& between_steps = {});

  [[nodiscard]] const exec::Session& session() const { return session_; }
  // Returns the statistics of the samples since the last call, and begins empty ones.
  [[nodiscard]] std::vector<Statistic> take();

 private:
  // What a value adds to a statistic: each of its elements `times` times, and constants.
  struct Feed {
    std::uint64_t times = 1;
    std::map<float, std::uint64_t> constants;
  };
  void fold_repetitions();
  void fold_into_operand(const Node& node);
  void observe(ValueId value, const exec::ArrayView& array);
  void observe_inputs(const exec::Session& session, std::span<const exec::ArrayView> inputs);
  void run_on(exec::Session& session, std::span<const exec::ArrayView> inputs,
              const std::function<void()>& between_steps);

  exec::Session session_;
  std::optional<exec::Session> stream_;  // graphs with states: runs all samples without a reset
  bool has_run_ = false;
  std::map<std::uint32_t, std::map<std::uint32_t, Feed>> fed_;  // by value and statistic
  std::vector<bool> watched_;                                   // by value
  std::vector<bool> finite_;                                    // by value
  std::vector<Observing> observing_;                            // by statistic
  std::vector<float> converted_;
};

}  // namespace tosaic::quant
