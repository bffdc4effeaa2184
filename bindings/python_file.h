// PythonFile: the bytes object of a .tosa file that is laid out before its constants are computed.
//
//   lay out: tables, and places for the constants ─▶ compute the constants there ─▶ write the tables
//
// The constants of the graph are then views of the bytes object, which they keep alive, and nothing is
// copied.
#pragma once

#include <memory>

#include "bind.h"
#include "tosaic/target/spec.h"
#include "tosaic/tosa/serialize.h"

namespace tosaic::python {

class PythonFile {
 public:
  // Called without the GIL. Throws what tosa::lay_out() throws, and pybind11::error_already_set if there is
  // no memory.
  explicit PythonFile(tosa::FileImage image);

  // Where the deferred constants of the graph are to be computed.
  [[nodiscard]] Places places() const { return image_.places(begin(), bytes_); }
  // Writes everything that is not in its place yet. The threads of `team` share the work; null: this thread
  // alone. Called without the GIL.
  void complete(Team* team) { image_.copy(begin(), team); }
  // The file. Needs the GIL.
  [[nodiscard]] py::bytes bytes() const { return py::reinterpret_borrow<py::bytes>(*bytes_); }

 private:
  [[nodiscard]] std::byte* begin() const {
    return reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes_->ptr()));
  }

  tosa::FileImage image_;
  std::shared_ptr<const py::object> bytes_;
};

// The file of a graph at stage tosa, with its constants still in the memory of the graph. State becomes
// variables where the target has them.
[[nodiscard]] tosa::FileImage lay_out(const std::shared_ptr<const Graph>& graph, bool locations,
                                      const target::TargetSpec* target);

}  // namespace tosaic::python
