#include "python_file.h"

#include <utility>

#include "tosaic/base/large_pages.h"
#include "tosaic/pipeline/lower.h"

namespace tosaic::python {
namespace {

std::shared_ptr<const py::object> new_bytes(std::size_t size) {
  const py::gil_scoped_acquire gil;
  py::object bytes =
      py::reinterpret_steal<py::object>(PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(size)));
  if (!bytes) throw py::error_already_set();
  advise_large_pages(PyBytes_AS_STRING(bytes.ptr()), size);
  return owned(std::move(bytes));
}

}  // namespace

PythonFile::PythonFile(tosa::FileImage image) : image_(std::move(image)), bytes_(new_bytes(image_.size())) {}

tosa::FileImage lay_out(const std::shared_ptr<const Graph>& graph, bool locations,
                        const target::TargetSpec* target) {
  const std::shared_ptr<const Graph> written =
      target != nullptr ? pipeline::file_graph(graph, *target) : graph;
  return tosa::lay_out(*written, {.locations = locations});
}

}  // namespace tosaic::python
