// Bindings of .pte files: the data model of file.h, reading and writing.
//
// A class per struct. Python makes an object with its fields as keywords: PteOperator(name="aten::add",
// overload="out"). A field returns a copy; storages are read-only arrays of bytes, without a copy.
#include "tosaic/pte/file.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bind.h"
#include "tosaic/pte/read.h"
#include "tosaic/pte/scalar_type.h"
#include "tosaic/pte/write.h"

namespace pybind11::detail {

// A storage is a read-only numpy array of bytes in Python. Any object with a contiguous buffer becomes a
// storage that keeps it alive.
template <>
struct type_caster<tosaic::Storage> {
  PYBIND11_TYPE_CASTER(tosaic::Storage, const_name("Buffer"));

  bool load(handle source, bool) {
    if (PyObject_CheckBuffer(source.ptr()) == 0) return false;
    const auto bytes = reinterpret_borrow<buffer>(source);
    const auto view = std::make_shared<buffer_info>(bytes.request());
    if (PyBuffer_IsContiguous(view->view(), 'C') == 0) return false;
    const auto owner = tosaic::python::owned(reinterpret_borrow<object>(source));
    static constexpr std::byte kNoBytes{};
    const auto size = static_cast<std::size_t>(view->size * view->itemsize);
    value = tosaic::Storage(owner, size == 0 ? &kNoBytes : static_cast<const std::byte*>(view->ptr), size);
    return true;
  }

  static handle cast(const tosaic::Storage& storage, return_value_policy, handle) {
    const auto* owner = new tosaic::Storage(storage);
    const capsule held(owner, [](void* each) { delete static_cast<tosaic::Storage*>(each); });
    const std::span<const std::byte> bytes = storage.bytes();
    array_t<std::uint8_t> made({static_cast<ssize_t>(bytes.size())}, {1},
                               reinterpret_cast<const std::uint8_t*>(bytes.data()), held);
    made.attr("setflags")(arg("write") = false);
    return made.release();
  }
};

}  // namespace pybind11::detail

namespace tosaic::python {
namespace {

using pte::File;

// A class whose objects are made from keywords, with a property per field.
template <class T>
class Struct : public py::class_<T> {
 public:
  Struct(py::module_& m, const char* name, const char* doc) : py::class_<T>(m, name, doc) {
    this->def(py::init([](const py::kwargs& fields) {
      auto made = std::make_unique<T>();
      const py::object self = py::cast(made.get(), py::return_value_policy::reference);
      for (const auto& [key, value] : fields) py::setattr(self, key, value);
      return made;
    }));
  }

  template <class Field>
  Struct& field(const char* name, Field T::* member) {
    this->def_property(
        name, [member](const T& self) { return self.*member; },
        [member](T& self, Field value) { self.*member = std::move(value); });
    return *this;
  }
};

// Binds a field whose type is an enumeration in C++. Python reads and sets its number.
template <class T, class Field>
void code_field(Struct<T>& structure, const char* name, Field T::* member) {
  structure.def_property(
      name, [member](const T& self) { return static_cast<int>(self.*member); },
      [member](T& self, int code) { self.*member = static_cast<Field>(code); });
}

void bind_values(py::module_& m) {
  Struct<pte::Allocation>(m, "PteAllocation", "The planned place of a tensor.")
      .field("memory", &pte::Allocation::memory)
      .field("offset", &pte::Allocation::offset);
  Struct<pte::Extra> extra(m, "PteExtra", "Facts that few tensors have.");
  extra.field("mutable_data", &pte::Extra::mutable_data)
      .field("name", &pte::Extra::name)
      .field("device", &pte::Extra::device)
      .field("device_index", &pte::Extra::device_index);
  code_field(extra, "location", &pte::Extra::location);
  Struct<pte::Tensor> tensor(m, "PteTensor", "A tensor of a method.");
  tensor.field("scalar_type", &pte::Tensor::scalar_type)
      .field("storage_offset", &pte::Tensor::storage_offset)
      .field("sizes", &pte::Tensor::sizes)
      .field("dim_order", &pte::Tensor::dim_order)
      .field("requires_grad", &pte::Tensor::requires_grad)
      .field("data", &pte::Tensor::data)
      .field("allocation", &pte::Tensor::allocation)
      .field("layout", &pte::Tensor::layout)
      .field("extra", &pte::Tensor::extra);
  code_field(tensor, "dynamism", &pte::Tensor::dynamism);
  tensor.def_property_readonly("byte_size", &pte::byte_size);
  Struct<pte::IntList>(m, "PteIntList", "Indices of integers.").field("items", &pte::IntList::items);
  Struct<pte::DoubleList>(m, "PteDoubleList", "Floats.").field("items", &pte::DoubleList::items);
  Struct<pte::BoolList>(m, "PteBoolList", "Bools.").field("items", &pte::BoolList::items);
  Struct<pte::TensorList>(m, "PteTensorList", "Indices of tensors.").field("items", &pte::TensorList::items);
  Struct<pte::OptionalTensorList>(m, "PteOptionalTensorList", "Indices of tensors; -1 is absent.")
      .field("items", &pte::OptionalTensorList::items);
}

void bind_methods(py::module_& m) {
  Struct<pte::Operator>(m, "PteOperator", "The name of an operator.")
      .field("name", &pte::Operator::name)
      .field("overload", &pte::Operator::overload);
  Struct<pte::KernelCall>(m, "PteKernelCall", "A call of an operator.")
      .field("op", &pte::KernelCall::op)
      .field("args", &pte::KernelCall::args);
  Struct<pte::DelegateCall>(m, "PteDelegateCall", "A call of a delegate.")
      .field("delegate", &pte::DelegateCall::delegate)
      .field("args", &pte::DelegateCall::args);
  Struct<pte::Move>(m, "PteMove", "A copy of a value.")
      .field("source", &pte::Move::from)
      .field("to", &pte::Move::to);
  Struct<pte::JumpFalse>(m, "PteJumpFalse", "A jump, unless a value is true.")
      .field("condition", &pte::JumpFalse::condition)
      .field("destination", &pte::JumpFalse::destination);
  Struct<pte::Free>(m, "PteFree", "The end of a value.").field("value", &pte::Free::value);
  Struct<pte::Frame>(m, "PteFrame", "A frame of the stack at export.")
      .field("file", &pte::Frame::file)
      .field("line", &pte::Frame::line)
      .field("function", &pte::Frame::function)
      .field("source", &pte::Frame::source);
  Struct<pte::Chain>(m, "PteChain", "Instructions in order.")
      .field("inputs", &pte::Chain::inputs)
      .field("outputs", &pte::Chain::outputs)
      .field("instructions", &pte::Chain::instructions)
      .field("traces", &pte::Chain::traces);
  Struct<pte::CompileSpec>(m, "PteCompileSpec", "An option of a backend.")
      .field("key", &pte::CompileSpec::key)
      .field("value", &pte::CompileSpec::value);
  Struct<pte::Delegate> delegate(m, "PteDelegate", "A part that a backend runs.");
  delegate.field("backend", &pte::Delegate::backend)
      .field("index", &pte::Delegate::index)
      .field("specs", &pte::Delegate::specs);
  code_field(delegate, "location", &pte::Delegate::location);
  Struct<pte::MemoryDevice>(m, "PteMemoryDevice", "The device of a memory.")
      .field("memory", &pte::MemoryDevice::memory)
      .field("device", &pte::MemoryDevice::device)
      .field("device_index", &pte::MemoryDevice::device_index);
  Struct<pte::Method>(m, "PteMethod", "A method: values and instructions.")
      .field("name", &pte::Method::name)
      .field("input_containers", &pte::Method::input_containers)
      .field("output_containers", &pte::Method::output_containers)
      .field("values", &pte::Method::values)
      .field("inputs", &pte::Method::inputs)
      .field("outputs", &pte::Method::outputs)
      .field("chains", &pte::Method::chains)
      .field("operators", &pte::Method::operators)
      .field("delegates", &pte::Method::delegates)
      .field("memories", &pte::Method::memories)
      .field("memory_devices", &pte::Method::memory_devices);
}

void bind_files(py::module_& m) {
  Struct<pte::Pieces>(m, "PtePieces", "Where elements begin in a segment.")
      .field("segment", &pte::Pieces::segment)
      .field("offsets", &pte::Pieces::offsets);
  Struct<pte::NamedData>(m, "PteNamedData", "A segment with a key.")
      .field("key", &pte::NamedData::key)
      .field("segment", &pte::NamedData::segment);
  Struct<pte::Segment>(m, "PteSegment", "Bytes after the program.")
      .field("offset", &pte::Segment::offset)
      .field("bytes", &pte::Segment::bytes);
  Struct<File>(m, "PteFile", "What a .pte file says.")
      .field("version", &File::version)
      .field("methods", &File::methods)
      .field("elements", &File::elements)
      .field("payloads", &File::payloads)
      .field("segments", &File::segments)
      .field("constants", &File::constants)
      .field("mutable_data", &File::mutable_data)
      .field("named_data", &File::named_data)
      .def("elements_of", &pte::elements_of, py::arg("tensor"),
           "The elements in dim order, as bytes; None without data in this file.")
      .def("payload_of", &pte::payload_of, py::arg("delegate"));
}

File read_pte(const Storage& data) {
  const py::gil_scoped_release release;
  return pte::read(data);
}

py::bytes write_pte(const File& file) {
  const pte::Image image = pte::lay_out(file);
  py::bytes made = py::reinterpret_steal<py::bytes>(
      PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(image.size())));
  if (!made) throw py::error_already_set();
  image.copy(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(made.ptr())));
  return made;
}

py::tuple head_of(const File& file, const std::vector<std::size_t>& sizes) {
  pte::Head head = pte::head_of(file, sizes);
  return py::make_tuple(std::move(head.program), head.places);
}

py::list scalar_types() {
  py::list types;
  for (const pte::ScalarType& type : pte::scalar_types())
    types.append(py::make_tuple(static_cast<int>(type.code), std::string(type.name), type.size,
                                type.dtype ? py::cast(std::string(to_string(*type.dtype))) : py::none()));
  return types;
}

}  // namespace

void bind_pte(py::module_& m) {
  bind_values(m);
  bind_methods(m);
  bind_files(m);
  m.def("read_pte", &read_pte, py::arg("data"), "A PteFile from the bytes of a .pte file, any buffer.");
  m.def("write_pte", &write_pte, py::arg("file"), "The bytes of a .pte file; its indices are not checked.");
  m.def("pte_head", &head_of, py::arg("file"), py::arg("sizes"),
        "The program of a file whose segments have these sizes, as bytes, and where each segment begins.");
  m.def("pte_scalar_types", &scalar_types,
        "The element types: [(code, name, bytes of an element, dtype of graphs or None)].");
}

}  // namespace tosaic::python
