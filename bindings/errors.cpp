// Errors as Python classes: each C++ error becomes the exception of the same name, with its parts as a dict.
#include <array>
#include <exception>

#include "bind.h"
#include "tosaic/base/error.h"

namespace tosaic::python {
namespace {

// The exception classes. They live as long as the interpreter, and are global because translate() needs them.
struct ErrorClasses {
  PyObject* invalid_graph = nullptr;
  PyObject* spec_violation = nullptr;
  PyObject* quant_mismatch = nullptr;
  PyObject* layout_mismatch = nullptr;
  PyObject* unsupported_op = nullptr;
  PyObject* internal_error = nullptr;
};
ErrorClasses& classes() {
  static ErrorClasses instance;
  return instance;
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

py::object make_error(const py::object& type, const ErrorParts& parts) {
  py::object error = type(text_of(format_error(parts)));
  error.attr("parts") = to_dict(parts);
  return error;
}

void set_error(PyObject* type, const Error& error) {
  const py::object raised = make_error(py::reinterpret_borrow<py::object>(type), error.parts());
  py::list each;
  for (const ErrorParts& parts : error.each()) each.append(to_dict(parts));
  raised.attr("each") = py::tuple(each);
  PyErr_SetObject(type, raised.ptr());
}

void translate(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const InvalidGraph& error) {
    set_error(classes().invalid_graph, error);
  } catch (const UnsupportedOp& error) {
    set_error(classes().unsupported_op, error);
  } catch (const SpecViolation& error) {
    set_error(classes().spec_violation, error);
  } catch (const QuantMismatch& error) {
    set_error(classes().quant_mismatch, error);
  } catch (const LayoutMismatch& error) {
    set_error(classes().layout_mismatch, error);
  } catch (const InternalError& error) {
    set_error(classes().internal_error, error);
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

py::dict to_dict(const ErrorParts& parts) {
  py::dict out;
  out["where"] = text_of(parts.where);
  out["what"] = text_of(parts.what);
  out["expected"] = text_of(parts.expected);
  out["got"] = text_of(parts.got);
  out["node"] = text_of(parts.node);
  out["module_path"] = text_of(parts.module_path);
  out["source"] = text_of(parts.source);
  out["hint"] = text_of(parts.hint);
  return out;
}

void bind_errors(py::module_& m) {
  py::dict attributes;
  attributes["parts"] = to_dict({});
  attributes["each"] = py::tuple();
  PyObject* base = PyErr_NewExceptionWithDoc(
      "tosaic.Error",
      "Base of all errors of tosaic. ``parts`` is a dict of the pieces of the "
      "message: where, what, expected, got, node, module_path, source, hint. ``each``: such "
      "parts of every fault, where several were found at once.",
      nullptr, attributes.ptr());
  if (base == nullptr) throw py::error_already_set();
  m.add_object("Error", base);
  ErrorClasses& known = classes();
  known.invalid_graph =
      new_class(m, "InvalidGraph", "A graph, text, file or argument is malformed or inconsistent.", base,
                PyExc_ValueError);
  known.spec_violation =
      new_class(m, "SpecViolation", "A graph breaks a rule of the target's specification or level.", base,
                PyExc_ValueError);
  known.quant_mismatch =
      new_class(m, "QuantMismatch", "Quantization parameters contradict each other.", base, PyExc_ValueError);
  known.layout_mismatch = new_class(
      m, "LayoutMismatch", "An array or boundary has another shape, dtype or dim order than declared.", base,
      PyExc_ValueError);
  known.unsupported_op =
      new_class(m, "UnsupportedOp", "Well-formed, but outside what tosaic or the target can express.", base,
                PyExc_NotImplementedError);
  known.internal_error =
      new_class(m, "InternalError", "A fault of tosaic itself; please report it.", base, PyExc_RuntimeError);
  py::register_exception_translator(&translate);

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
