// Bindings of .tosa files: writing a graph as bytes, and reading bytes as a graph.
#include <pybind11/stl.h>

#include "bind.h"
#include "python_file.h"
#include "tosaic/base/team.h"
#include "tosaic/base/write_back.h"
#include "tosaic/target/spec.h"
#include "tosaic/target/type_support.h"
#include "tosaic/tosa/deserialize.h"
#include "tosaic/tosa/serialize.h"

namespace tosaic::python {
namespace {

using SharedGraph = std::shared_ptr<Graph>;

tosa::FileImage lay_out_for(const SharedGraph& graph, bool locations,
                            const std::optional<std::string>& target) {
  const std::optional<target::TargetSpec> spec =
      target ? std::optional(target::parse_target(*target)) : std::nullopt;
  return lay_out(graph, locations, spec ? &*spec : nullptr);
}

std::size_t serialized_size(const SharedGraph& graph, bool locations,
                            const std::optional<std::string>& target) {
  return lay_out_for(graph, locations, target).size();
}

// The bytes of a piece of a file, as a Python buffer. The piece keeps the file alive.
struct FilePiece {
  std::shared_ptr<const tosa::FileImage> file;
  std::span<const std::byte> bytes;
};

py::list pieces(const SharedGraph& graph, bool locations, const std::optional<std::string>& target) {
  std::shared_ptr<const tosa::FileImage> file;
  std::vector<std::span<const std::byte>> found;
  {
    const py::gil_scoped_release release;
    file = std::make_shared<const tosa::FileImage>(lay_out_for(graph, locations, target));
    found = file->pieces();
  }
  py::list out;
  for (const std::span<const std::byte> piece : found)
    if (!piece.empty()) out.append(FilePiece{file, piece});
  return out;
}

py::bytes serialize(const SharedGraph& graph, bool locations, const std::optional<std::string>& target,
                    std::uint32_t threads) {
  std::optional<PythonFile> file;
  {
    const py::gil_scoped_release release;  // no other code has the bytes yet
    file.emplace(lay_out_for(graph, locations, target));
    std::optional<Team> team;
    if (threads > 1) team.emplace(threads);
    file->complete(team ? &*team : nullptr);
  }
  return file->bytes();
}

// `data` is a buffer without gaps, such as bytes or a mapped file. The graph keeps it.
tosa::Read read_file(const py::buffer& data) {
  const py::memoryview view(data);
  const Py_buffer& buffer = *PyMemoryView_GET_BUFFER(view.ptr());
  const Storage file(owned(view), static_cast<const std::byte*>(buffer.buf),
                     static_cast<std::size_t>(buffer.len));
  const py::gil_scoped_release release;
  return tosa::read(file);
}

py::tuple to_texts(const std::vector<std::string_view>& texts) {
  py::tuple out(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) out[i] = std::string(texts[i]);
  return out;
}

SharedGraph deserialize(const py::buffer& data) { return std::make_shared<Graph>(read_file(data).graph); }

py::tuple deserialize_with_notes(const py::bytes& data) {
  tosa::Read read = read_file(data);
  py::list notes;
  for (const tosa::Note& note : read.notes) notes.append(py::make_tuple(note.rule, note.message, note.name));
  return py::make_tuple(std::make_shared<Graph>(std::move(read.graph)), notes);
}

py::list type_modes(const std::string& name, std::size_t operand_count) {
  const std::optional<Op> op = parse_op(name);
  if (!op) throw InvalidGraph({.where = "type modes", .what = "unknown operator", .got = name});
  py::list out;
  for (const target::TypeMode& mode : target::type_modes(*op, operand_count)) {
    py::list dtypes;
    for (const DType dtype : mode.dtypes) dtypes.append(std::string(to_string(dtype)));
    out.append(py::make_tuple(py::tuple(dtypes), target::to_string(mode.need)));
  }
  return out;
}

}  // namespace

void bind_tosa(py::module_& m) {
  m.def(
      "type_modes", &type_modes, py::arg("op"), py::arg("operand_count"),
      "Combinations of dtypes that TOSA's tables give a tosa operator, operands first, and what each needs: "
      "[((\"i8\", \"i8\", \"i32\"), \"PRO-INT\")].");
  m.def(
      "serialize", &serialize, py::arg("graph").none(false), py::kw_only(), py::arg("locations") = true,
      py::arg("target") = py::none(), py::arg("threads") = 1,
      "The bytes of a .tosa file. State becomes variables where `target` has them, else inputs and outputs.");
  py::class_<FilePiece>(m, "FilePiece", py::buffer_protocol(), "A piece of a file, as a read-only buffer.")
      .def_buffer([](const FilePiece& piece) {
        return py::buffer_info(const_cast<std::byte*>(piece.bytes.data()), 1,
                               py::format_descriptor<std::uint8_t>::format(), 1,
                               {static_cast<py::ssize_t>(piece.bytes.size())}, {py::ssize_t{1}}, true);
      })
      .def("__len__", [](const FilePiece& piece) { return piece.bytes.size(); });
  m.def(
      "file_pieces", &pieces, py::arg("graph").none(false), py::kw_only(), py::arg("locations") = true,
      py::arg("target") = py::none(),
      "What serialize returns, as a list of pieces. Large constants are not copied: they stay in the graph.");
  m.def("start_write_back", &start_write_back, py::arg("file"), py::arg("begin"), py::arg("size"),
        py::call_guard<py::gil_scoped_release>(),
        "Lets the system begin to write a part of a file, given by its descriptor, to the disk.");
  m.def("serialized_size", &serialized_size, py::arg("graph").none(false), py::kw_only(),
        py::arg("locations") = true, py::arg("target") = py::none(), py::call_guard<py::gil_scoped_release>(),
        "How many bytes serialize would return; none of the large constants is copied.");
  m.def(
      "parse_target",
      [](const std::string& text) {
        const target::TargetSpec spec = target::parse_target(text);
        return py::dict(py::arg("version") = to_string(spec.version),
                        py::arg("profiles") = to_texts(target::profile_texts(spec)),
                        py::arg("extensions") = to_texts(target::extension_texts(spec)),
                        py::arg("level") = std::string(target::limits(spec.level).name));
      },
      py::arg("text"), "The parts of a target, in canonical order.");
  m.def("deserialize", &deserialize, py::arg("data"), "A graph from the bytes of a .tosa file.");
  m.def("deserialize_with_notes", &deserialize_with_notes, py::arg("data"),
        "The same, and what the reader noticed: (rule, message, name) each.");
}

}  // namespace tosaic::python
