// Bindings of `read_arguments`: the arguments of a call of an FX graph, in the order of the parameters of its
// operator, with the values of nodes in place of nodes.
//
//   conv2d(input, weight, padding=[1, 1])    ->    [Ref, Ref, None, [1, 1], [1, 1], [1, 1], 1]
//
// `PlainCalls` also does what follows: it sets the recorded type of the result, and calls the function
// of the row. It leaves calls with anything special to Python. Most calls have nothing special, and an
// importer spends most of its time on them.
#include <algorithm>
#include <vector>

#include "bind.h"
#include "tosaic/base/error.h"

namespace tosaic::python {
namespace {

// The types by which a reader of nodes tells arguments apart.
class ArgumentTypes {
 public:
  ArgumentTypes(py::type node, py::type value, const py::iterable& constants, const py::iterable& lists)
      : node_(std::move(node)), value_(std::move(value)) {
    for (const py::handle type : constants) constants_.push_back(py::reinterpret_borrow<py::type>(type));
    for (const py::handle type : lists) lists_.push_back(py::reinterpret_borrow<py::type>(type));
  }

  [[nodiscard]] bool is_node(PyObject* object) const { return is(object, node_); }
  [[nodiscard]] bool is_value(PyObject* object) const { return is(object, value_); }
  [[nodiscard]] bool is_constant(PyObject* object) const { return is_one_of(object, constants_); }
  [[nodiscard]] bool is_list(PyObject* object) const { return is_one_of(object, lists_); }

 private:
  static bool is(PyObject* object, const py::type& type) {
    return reinterpret_cast<PyObject*>(Py_TYPE(object)) == type.ptr();
  }
  static bool is_one_of(PyObject* object, const std::vector<py::type>& types) {
    return std::any_of(types.begin(), types.end(),
                       [object](const py::type& type) { return is(object, type); });
  }

  py::type node_, value_;
  std::vector<py::type> constants_, lists_;
};

bool is_plain(PyObject* object) {
  return PyLong_CheckExact(object) || PyFloat_CheckExact(object) || PyBool_Check(object) ||
         PyUnicode_CheckExact(object) || object == Py_None;
}

template <class Predicate>
bool all_items(PyObject* list, Predicate&& predicate) {
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(list);
  PyObject** items = PySequence_Fast_ITEMS(list);
  return std::all_of(items, items + count, std::forward<Predicate>(predicate));
}

py::object checked(PyObject* made) {
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

struct Reader {
  const ArgumentTypes& types;
  py::dict env;
  py::object resolved;
  bool only_plain = true;

  py::object value_of(PyObject* argument) {
    if (types.is_node(argument)) {
      PyObject* value = PyDict_GetItemWithError(env.ptr(), argument);
      if (value == nullptr) {
        if (PyErr_Occurred() == nullptr) PyErr_SetObject(PyExc_KeyError, argument);
        throw py::error_already_set();
      }
      only_plain = only_plain && types.is_value(value);
      return py::reinterpret_borrow<py::object>(value);
    }
    if (types.is_constant(argument)) return py::reinterpret_borrow<py::object>(argument);
    const bool is_list = types.is_list(argument) && (PyList_Check(argument) || PyTuple_Check(argument));
    if (is_list && all_items(argument, is_plain)) return checked(PySequence_List(argument));
    py::object value = checked(PyObject_CallOneArg(resolved.ptr(), argument));
    only_plain =
        only_plain && PyList_CheckExact(value.ptr()) &&
        all_items(value.ptr(), [this](PyObject* item) { return is_plain(item) || types.is_value(item); });
    return value;
  }
};

// The arguments in the order of `names`, as a list.
py::list arguments_of(Reader& reader, py::handle args, py::handle kwargs, const py::tuple& names,
                      const py::tuple& defaults) {
  const py::object given = checked(PySequence_Fast(args.ptr(), "arguments are a sequence"));
  const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(given.ptr()));
  const std::size_t total = std::max(count, names.size());
  py::list values(total);
  for (std::size_t i = 0; i < total; ++i) {
    PyObject* argument = nullptr;
    if (i < count) {
      argument = PySequence_Fast_GET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i));
    } else {
      if (PyDict_GET_SIZE(kwargs.ptr()) != 0)
        argument = PyDict_GetItemWithError(kwargs.ptr(), py::handle(names[i]).ptr());
      if (argument == nullptr) argument = PyTuple_GET_ITEM(defaults.ptr(), static_cast<Py_ssize_t>(i));
    }
    PyList_SET_ITEM(values.ptr(), static_cast<Py_ssize_t>(i), reader.value_of(argument).release().ptr());
  }
  return values;
}

py::tuple read_arguments(const ArgumentTypes& types, const py::sequence& args, const py::dict& kwargs,
                         const py::tuple& names, const py::tuple& defaults, const py::dict& env,
                         const py::object& resolved) {
  Reader reader{types, env, resolved};
  py::list values = arguments_of(reader, args, kwargs, names, defaults);
  return py::make_tuple(std::move(values), reader.only_plain);
}

py::object attribute(py::handle object, const char* name) {
  return checked(PyObject_GetAttr(object.ptr(), interned(name)));
}

void set_attribute(py::handle object, const char* name, py::handle value) {
  if (PyObject_SetAttr(object.ptr(), interned(name), value.ptr()) != 0) throw py::error_already_set();
}

// Reads a call if `ArgumentTypes` knows the types of all its arguments, and if torch recorded one
// result whose dtype and sizes are known.
class PlainCalls {
 public:
  PlainCalls(ArgumentTypes types, py::type recorded, py::dict codes)
      : types_(std::move(types)), recorded_(std::move(recorded)), codes_(std::move(codes)) {}

  // The value of the call, or None if the call is not plain: then nothing was written.
  [[nodiscard]] py::object read(py::handle node, py::handle row, const py::dict& env, py::handle writer,
                                const py::object& resolved, const py::object& otherwise) const {
    const py::object meta = attribute(node, "meta");
    PyObject* const recorded =
        PyDict_Check(meta.ptr()) ? PyDict_GetItem(meta.ptr(), interned("val")) : nullptr;
    if (recorded == nullptr || !py::type::handle_of(recorded).is(recorded_)) return py::none();
    PyObject* const code = PyDict_GetItemWithError(codes_.ptr(), attribute(recorded, "dtype").ptr());
    if (code == nullptr) {
      if (PyErr_Occurred() != nullptr) throw py::error_already_set();
      return py::none();
    }
    const py::object shape = attribute(recorded, "shape");
    if (!PyTuple_Check(shape.ptr()) ||
        !all_items(shape.ptr(), [](PyObject* size) { return PyLong_CheckExact(size); }))
      return py::none();
    Reader reader{types_, env, resolved};
    const py::list values = arguments_of(reader, attribute(node, "args"), attribute(node, "kwargs"),
                                         attribute(row, "names"), attribute(row, "defaults"));
    if (!reader.only_plain || is_training(row, values)) return py::none();
    set_attribute(writer, "dtype", code);
    set_attribute(writer, "shape", shape);
    set_attribute(writer, "is_complex", Py_False);
    py::object made = emitted(row, writer, values);
    return made.is_none()
               ? checked(PyObject_CallFunctionObjArgs(otherwise.ptr(), row.ptr(), values.ptr(), nullptr))
               : made;
  }

 private:
  static bool is_training(py::handle row, const py::list& values) {
    if (PyTuple_GET_SIZE(attribute(row, "training_at").ptr()) == 0) return false;
    return PyObject_IsTrue(
               checked(PyObject_CallMethodOneArg(row.ptr(), interned("is_training"), values.ptr())).ptr()) !=
           0;
  }

  static py::object emitted(py::handle row, py::handle writer, const py::list& values) {
    const auto count = static_cast<std::size_t>(PyList_GET_SIZE(values.ptr()));
    std::vector<PyObject*> operands{writer.ptr()};
    operands.reserve(count + 1);
    for (std::size_t i = 0; i < count; ++i)
      operands.push_back(PyList_GET_ITEM(values.ptr(), static_cast<Py_ssize_t>(i)));
    return checked(PyObject_Vectorcall(attribute(row, "emit").ptr(), operands.data(), count + 1, nullptr));
  }

  ArgumentTypes types_;
  py::type recorded_;
  py::dict codes_;
};

}  // namespace

void bind_call_arguments(py::module_& m) {
  py::class_<ArgumentTypes>(m, "ArgumentTypes", "The types by which a reader of nodes tells arguments apart.")
      .def(py::init<py::type, py::type, const py::iterable&, const py::iterable&>(), py::arg("node"),
           py::arg("value"), py::arg("constants"), py::arg("lists"),
           "`value` is that of tensor values. Objects of the types `constants` are their own values, and not "
           "complex.");
  m.def("read_arguments", &read_arguments, py::arg("types"), py::arg("args"), py::arg("kwargs"),
        py::arg("names"), py::arg("defaults"), py::arg("env"), py::arg("resolved"),
        "Returns the arguments of a call in the order of the parameters `names`, nodes by their values in "
        "`env`; `resolved` computes other values. The second result is False if an argument may be, or "
        "contain, something else than tensor values and constants.");
  py::class_<PlainCalls>(m, "PlainCalls", "Reads the calls of an FX graph about which nothing is special.")
      .def(py::init<ArgumentTypes, py::type, py::dict>(), py::arg("types"), py::arg("recorded"),
           py::arg("codes"),
           "`recorded` is the type of a recorded tensor, `codes` are the positions in DTYPES of its dtypes.")
      .def("read", &PlainCalls::read, py::arg("node"), py::arg("row"), py::arg("env"), py::arg("writer"),
           py::arg("resolved"), py::arg("otherwise"),
           "Reads a call by its row, or by `otherwise(row, arguments)` if the row returns None. If an "
           "argument "
           "is no tensor value or constant, if the size of the result is not known, or in training mode, "
           "returns None and has written nothing.");
}

}  // namespace tosaic::python
