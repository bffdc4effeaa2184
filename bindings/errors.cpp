// Bindings of errors. Each C++ error becomes the Python exception of the same name, with its parts as a dict.
#include <pybind11/stl.h>

#include <array>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "tosaic/base/error.h"
#include "tosaic/base/near_names.h"

namespace tosaic::python {
namespace {

template <class E>
bool is(const Error& error) {
  return dynamic_cast<const E*>(&error) != nullptr;
}

// An exception class, its base class in Python, and a test whether a C++ error is of the class.
struct ErrorClass {
  const char* name;
  const char* doc;
  PyObject* builtin;
  bool (*fits)(const Error&);
  PyObject* type = nullptr;
};

// The exception classes. They live as long as the interpreter, and are global because translate() needs them.
std::array<ErrorClass, 6>& classes() {
  static std::array<ErrorClass, 6> rows = {{
      {"InvalidGraph", "A graph, text, file or argument is malformed or inconsistent.", PyExc_ValueError,
       is<InvalidGraph>},
      {"SpecViolation", "A graph breaks a rule of the target's specification or level.", PyExc_ValueError,
       is<SpecViolation>},
      {"QuantMismatch", "Quantization parameters contradict each other.", PyExc_ValueError,
       is<QuantMismatch>},
      {"LayoutMismatch", "An array or boundary has another shape, dtype or dim order than declared.",
       PyExc_ValueError, is<LayoutMismatch>},
      {"UnsupportedOp", "Well-formed, but outside what tosaic or the target can express.",
       PyExc_NotImplementedError, is<UnsupportedOp>},
      {"InternalError", "A fault of tosaic itself; please report it.", PyExc_RuntimeError, is<InternalError>},
  }};
  return rows;
}

// A message may quote bytes that are not UTF-8, such as names in a file.
py::object text_of(const std::string& message) {
  PyObject* const text =
      PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "backslashreplace");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(text);
}

// A str may have lone surrogates, such as a file name that is not UTF-8; they become escapes.
std::string bytes_of(const py::str& text) {
  PyObject* const encoded = PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace");
  if (encoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::bytes>(encoded);
}

// Names in a message may come from a file, so characters that would control a terminal are escaped. In
// `parts`, names are not escaped.
py::object make_error(const py::object& type, const ErrorParts& parts) {
  const py::object visible = py::module_::import("tosaic.base.visible").attr("visible");
  py::object error = type(visible(text_of(format_error(parts))));
  error.attr("parts") = error_parts_to_dict(parts);
  return error;
}

void set_error(PyObject* type, const Error& error) {
  const py::object raised = make_error(py::reinterpret_borrow<py::object>(type), error.parts());
  py::list each;
  for (const ErrorParts& parts : error.each()) each.append(error_parts_to_dict(parts));
  raised.attr("each") = py::tuple(each);
  PyErr_SetObject(type, raised.ptr());
}

void translate(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(std::move(thrown));
  } catch (const Error& error) {
    for (const ErrorClass& row : classes())
      if (row.fits(error)) return set_error(row.type, error);
    throw;
  }
}

PyObject* new_class(py::module_& m, const char* name, const char* doc, PyObject* error, PyObject* builtin) {
  const py::tuple bases = py::make_tuple(py::handle(error), py::handle(builtin));
  PyObject* type =
      PyErr_NewExceptionWithDoc((std::string("tosaic.") + name).c_str(), doc, bases.ptr(), nullptr);
  if (type == nullptr) throw py::error_already_set();
  m.add_object(name, type);
  return type;
}

}  // namespace

py::dict error_parts_to_dict(const ErrorParts& parts) {
  return py::dict(py::arg("where") = text_of(parts.where), py::arg("what") = text_of(parts.what),
                  py::arg("expected") = text_of(parts.expected), py::arg("got") = text_of(parts.got),
                  py::arg("node") = text_of(parts.node), py::arg("module_path") = text_of(parts.module_path),
                  py::arg("source") = text_of(parts.source), py::arg("hint") = text_of(parts.hint));
}

void bind_errors(py::module_& m) {
  py::dict attributes(py::arg("parts") = error_parts_to_dict({}), py::arg("each") = py::tuple());
  PyObject* base = PyErr_NewExceptionWithDoc(
      "tosaic.Error",
      "Base of all errors of tosaic. ``parts`` is a dict of the pieces of the "
      "message: where, what, expected, got, node, module_path, source, hint. ``each``: such "
      "parts of every fault, where several were found at once.",
      nullptr, attributes.ptr());
  if (base == nullptr) throw py::error_already_set();
  m.add_object("Error", base);
  for (ErrorClass& row : classes()) row.type = new_class(m, row.name, row.doc, base, row.builtin);
  py::register_exception_translator(&translate);

  m.def(
      "did_you_mean",
      [](const py::str& name, const py::sequence& known) {
        std::vector<KnownName> names;
        for (const py::handle each : known) {
          if (py::isinstance<py::str>(each)) {
            names.push_back({each.cast<std::string>()});
          } else {
            const auto [full, short_form] = each.cast<std::pair<std::string, std::string>>();
            names.push_back({full, short_form});
          }
        }
        return did_you_mean(bytes_of(name), names);
      },
      py::arg("name"), py::arg("known"),
      "A hint with the known names that are nearest to `name`, or ''. A known name is a text, or a pair of "
      "name and "
      "short form.");
  m.def(
      "make_error",
      [](const py::object& type, const py::str& where, const py::str& what, const py::str& expected,
         const py::str& got, const py::str& node, const py::str& module_path, const py::str& source,
         const py::str& hint) {
        return make_error(type, {bytes_of(where), bytes_of(what), bytes_of(expected), bytes_of(got),
                                 bytes_of(node), bytes_of(module_path), bytes_of(source), bytes_of(hint)});
      },
      py::arg("type"), py::kw_only(), py::arg("where") = "", py::arg("what") = "", py::arg("expected") = "",
      py::arg("got") = "", py::arg("node") = "", py::arg("module_path") = "", py::arg("source") = "",
      py::arg("hint") = "",
      "An exception of class `type` with its parts and their text; the caller raises it.");
}

}  // namespace tosaic::python
