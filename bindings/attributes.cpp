// Converts attribute structs to and from Python dicts, by the field lists of ir/attributes.h.
#include <pybind11/stl.h>

#include <string_view>
#include <unordered_map>

#include "bind.h"
#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"

namespace tosaic::python {
namespace {

[[noreturn]] void refuse(const std::string& what, const char* expected, py::handle got) {
  throw InvalidGraph(
      {.where = "attributes", .what = what, .expected = expected, .got = py::repr(got).cast<std::string>()});
}

std::int64_t to_int(py::handle value) {
  if (!PyLong_Check(value.ptr())) {
    if (PyIndex_Check(value.ptr()) == 0) refuse("wrong kind of number", "an integer", value);
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!index) throw py::error_already_set();
    return to_int(index);
  }
  const long long number = PyLong_AsLongLong(value.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return number;
}

double to_double(py::handle value) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return number;
}

void read(py::handle from, bool& to) {
  const int truth = PyObject_IsTrue(from.ptr());
  if (truth < 0) throw py::error_already_set();
  to = truth != 0;
}
void read(py::handle from, std::int64_t& to) { to = to_int(from); }
void read(py::handle from, double& to) { to = to_double(from); }
// Bytes that are not UTF-8 are lone surrogates in a Python str (surrogateescape), as in file names of Python.
void read(py::handle from, std::string& to) {
  if (!PyUnicode_Check(from.ptr())) refuse("wrong kind of value", "a string", from);
  const auto bytes =
      py::reinterpret_steal<py::bytes>(PyUnicode_AsEncodedString(from.ptr(), "utf-8", "surrogateescape"));
  if (!bytes) throw py::error_already_set();
  to = bytes;
}
void read(py::handle from, DType& to) { to = to_dtype(from); }
void read(py::handle from, Dims& to) { to = to_dims(from); }
void read(py::handle from, Groups& to) {
  const Dims both = to_dims(from);
  if (both.size() != 2) refuse("wrong kind of groups", "(axis, size)", from);
  to = {both[0], both[1]};
}
void read(py::handle from, Scalar& to) {
  if (PyBool_Check(from.ptr())) {
    to = from.ptr() == Py_True;
  } else if (PyLong_Check(from.ptr())) {
    to = to_int(from);
  } else {
    to = to_double(from);
  }
}
// Reads the numbers of a dense one-dimensional array of exactly this type; false for any other object.
template <class T>
bool read_array(py::handle from, std::vector<T>& to) {
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::int64_t>) {
    Py_buffer view;
    if (PyObject_CheckBuffer(from.ptr()) == 0) return false;
    if (PyObject_GetBuffer(from.ptr(), &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
      PyErr_Clear();
      return false;
    }
    const std::string_view format = view.format == nullptr ? "" : view.format;
    const bool known = std::is_same_v<T, double> ? format == "d" : format == "q" || format == "l";
    const bool fits = known && view.ndim == 1 && view.itemsize == sizeof(T);
    if (fits) to.assign(static_cast<const T*>(view.buf), static_cast<const T*>(view.buf) + view.shape[0]);
    PyBuffer_Release(&view);
    return fits;
  }
  return false;
}
template <class T>
void read(py::handle from, std::vector<T>& to) {
  if (read_array(from, to)) return;
  to.clear();
  for (const py::handle item : from) read(item, to.emplace_back());
}
template <class T>
void read(py::handle from, std::optional<T>& to) {
  if (from.is_none()) {
    to.reset();
  } else {
    read(from, to.emplace());
  }
}
template <class E>
  requires std::is_enum_v<E>
void read(py::handle from, E& to) {
  const auto name = from.cast<std::string>();
  int index = 0;
  for (const char* known : kEnumNames<E>) {
    if (name == known) {
      to = static_cast<E>(index);
      return;
    }
    ++index;
  }
  refuse("unknown name", "the name of an enumerator", from);
}

py::object write(bool value) { return py::bool_(value); }
py::object write(std::int64_t value) { return py::int_(value); }
py::object write(double value) { return py::float_(value); }
py::object write(const std::string& value) {
  PyObject* const text =
      PyUnicode_DecodeUTF8(value.data(), static_cast<Py_ssize_t>(value.size()), "surrogateescape");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(text);
}
py::object write(DType value) { return py::str(std::string(to_string(value))); }
py::object write(const Dims& value) { return to_tuple(value); }
py::object write(const Groups& value) { return to_tuple({value.axis, value.size}); }
py::object write(const Scalar& value) {
  return std::visit([](auto number) { return write(number); }, value);
}
template <class T>
py::object write(const std::vector<T>& value) {
  return py::tuple(py::cast(value));
}
template <class T>
py::object write(const std::optional<T>& value) {
  return value ? write(*value) : py::none();
}
template <class E>
  requires std::is_enum_v<E>
py::object write(E value) {
  return py::str(kEnumNames<E>[static_cast<std::size_t>(value)]);
}

template <class A>
void check_all_known(Op op, const A& attrs, py::handle fields) {
  for (const auto item : py::reinterpret_borrow<py::dict>(fields)) {
    bool known = false;
    std::string names;
    A::fields(attrs, [&](const char* name, const auto&) {
      known = known || py::str(item.first).equal(py::str(name));
      names += (names.empty() ? "" : ", ") + std::string(name);
    });
    if (known) continue;
    const std::string who = quoted(info(op).name);
    const std::string expected = names.empty() ? who + " has no attributes" : "one of " + names;
    refuse("unknown attribute of " + who, expected.c_str(), item.first);
  }
}

// The values that an attribute of this type may have, as text for errors.
template <class T>
struct Kind;
template <>
struct Kind<bool> {
  static std::string text() { return "True or False"; }
};
template <>
struct Kind<std::int64_t> {
  static std::string text() { return "an integer of at most 64 bits"; }
};
template <>
struct Kind<double> {
  static std::string text() { return "a number"; }
};
template <>
struct Kind<Scalar> : Kind<double> {};
template <>
struct Kind<std::string> {
  static std::string text() { return "a string"; }
};
template <>
struct Kind<DType> {
  static std::string text() { return "a dtype such as 'f32'"; }
};
template <>
struct Kind<Dims> {
  static std::string text() { return "a sequence of integers"; }
};
template <>
struct Kind<Groups> {
  static std::string text() { return "(axis, size)"; }
};
template <>
struct Kind<std::vector<std::int64_t>> : Kind<Dims> {};
template <>
struct Kind<std::vector<double>> {
  static std::string text() { return "a sequence of numbers"; }
};
template <class T>
struct Kind<std::optional<T>> {
  static std::string text() { return Kind<T>::text() + ", or None"; }
};
template <class E>
  requires std::is_enum_v<E>
struct Kind<E> {
  static std::string text() {
    std::string names;
    for (const char* name : kEnumNames<E>)
      names += (names.empty() ? "one of '" : ", '") + std::string(name) + "'";
    return names;
  }
};

[[noreturn]] void refuse_value(Op op, const char* name, const std::string& expected, py::handle value) {
  refuse("attribute '" + std::string(name) + "' of '" + std::string(info(op).name) + "' has a wrong value",
         expected.c_str(), value);
}

// Reads an attribute. If the value has a wrong type, throws an error that names the attribute. Other
// exceptions pass.
template <class T>
void read_attribute(Op op, const char* name, py::handle from, T& to) {
  try {
    read(from, to);
  } catch (const InvalidGraph&) {
    refuse_value(op, name, Kind<T>::text(), from);
  } catch (const py::cast_error&) {
    refuse_value(op, name, Kind<T>::text(), from);
  } catch (py::error_already_set& error) {
    const bool is_wrong = error.matches(PyExc_TypeError) || error.matches(PyExc_ValueError) ||
                          error.matches(PyExc_OverflowError);
    if (!is_wrong) throw;
    refuse_value(op, name, Kind<T>::text(), from);
  }
}

}  // namespace

PyObject* interned(const char* literal) {
  static std::unordered_map<const char*, PyObject*> keys;
  PyObject*& key = keys[literal];
  if (key == nullptr) key = PyUnicode_InternFromString(literal);
  if (key == nullptr) throw py::error_already_set();
  return key;
}

Attrs attrs_from(Op op, py::handle fields) {
  Attrs attrs = default_attrs(op);
  if (fields.is_none()) return attrs;
  if (!PyDict_Check(fields.ptr())) refuse("attributes", "a dict or None", fields);
  visit(
      [op, &fields](auto& typed) {
        Py_ssize_t found = 0;
        std::remove_cvref_t<decltype(typed)>::fields(typed, [&](const char* name, auto& member) {
          if (PyObject* value = PyDict_GetItem(fields.ptr(), interned(name))) {
            ++found;
            read_attribute(op, name, value, member);
          }
        });
        if (found != PyDict_Size(fields.ptr())) check_all_known(op, typed, fields);
      },
      attrs);
  return attrs;
}

py::dict attrs_to_dict(const Attrs& attrs) {
  py::dict out;
  visit(
      [&out](const auto& typed) {
        std::remove_cvref_t<decltype(typed)>::fields(
            typed, [&out](const char* name, const auto& member) { out[name] = write(member); });
      },
      attrs);
  return out;
}

py::tuple to_tuple(const Dims& dims) {
  py::tuple out(dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i) out[i] = dims[i];
  return out;
}

Dims to_dims(py::handle sequence) {
  const auto items =
      py::reinterpret_steal<py::object>(PySequence_Fast(sequence.ptr(), "a sequence of integers is due"));
  if (!items) throw py::error_already_set();
  Dims dims;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) dims.push_back(to_int(PySequence_Fast_GET_ITEM(items.ptr(), i)));
  return dims;
}

DType to_dtype(py::handle value) {
  if (PyLong_Check(value.ptr())) {
    const std::int64_t code = to_int(value);
    if (code < 0 || code > static_cast<std::int64_t>(DType::kF64))
      refuse("dtype code", "a position in DTYPES", value);
    return static_cast<DType>(code);
  }
  if (PyUnicode_Check(value.ptr()))
    if (const auto dtype = parse_dtype(value.cast<std::string>())) return *dtype;
  refuse("unknown dtype", "one of DTYPES", value);
}

}  // namespace tosaic::python
