// Bindings of quant/accuracy: states and functions that make a quantized network more accurate.
#include "tosaic/quant/accuracy/accuracy.h"

#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "arrays.h"
#include "bind.h"

namespace tosaic::python {
namespace {

using SharedGraph = std::shared_ptr<Graph>;
using quant::ChannelAbsMax;
using quant::ChannelShape;
using quant::ChannelSums;
using quant::Contraction;
using quant::SecondMoments;

Shape shape_of(const Floats& array) {
  Shape shape;
  for (py::ssize_t i = 0; i < array.ndim(); ++i) shape.push_back(array.shape(i));
  return shape;
}

Floats like(const Floats& array, const std::vector<float>& values) {
  Floats out(std::vector<py::ssize_t>(array.shape(), array.shape() + array.ndim()));
  std::copy(values.begin(), values.end(), out.mutable_data());
  return out;
}

template <class T>
py::array_t<T> vector_of(std::span<const T> values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

// The shape around one axis of an array. Throws LayoutMismatch for an axis that the array does not have.
ChannelShape around(const Floats& samples, py::ssize_t axis) {
  const py::ssize_t rank = samples.ndim();
  if (axis < -rank || axis >= rank)
    throw LayoutMismatch({.where = "accuracy",
                          .what = "the axis of the channels",
                          .expected = "an axis of an array of rank " + std::to_string(rank),
                          .got = std::to_string(axis)});
  if (axis < 0) axis += rank;
  ChannelShape shape{.channels = samples.shape(axis)};
  for (py::ssize_t i = 0; i < rank; ++i)
    (i < axis ? shape.outer : shape.inner) *= i == axis ? 1 : samples.shape(i);
  return shape;
}

template <class State>
py::bytes to_bytes(const State& state) {
  const std::vector<std::byte> bytes = state.to_bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class State>
State from_bytes(const py::bytes& bytes) {
  const auto text = static_cast<std::string_view>(bytes);
  return State::from_bytes(std::as_bytes(std::span(text)));
}

// Binds the methods that all states have: merge, bytes, equality and pickling.
template <class State>
void bind_state(py::class_<State>& type) {
  type.def("merge", &State::merge, py::arg("other"), "Adds the samples of another state.")
      .def("to_bytes", &to_bytes<State>, "The state as bytes.")
      .def_static("from_bytes", &from_bytes<State>, py::arg("state"), "The state whose bytes were returned.")
      .def(
          "__eq__", [](const State& a, const State& b) { return a == b; }, py::is_operator())
      .def(py::pickle(&to_bytes<State>, &from_bytes<State>));
}

void bind_contraction(py::module_& m) {
  py::class_<Contraction>(m, "Contraction",
                          "A node that multiplies by a constant weight, as products of matrices.")
      .def(py::init([](const SharedGraph& graph, const std::string& node) {
             return quant::contraction_named(*graph, node);
           }),
           py::arg("graph"), py::arg("node"))
      .def_readonly("input", &Contraction::input, "The position of the operand that is no weight.")
      .def_readonly("weight", &Contraction::weight, "The position of the weight among the operands.")
      .def_readonly("bias", &Contraction::bias,
                    "The position of the bias, which may be absent. None: the operator has no such operand.")
      .def_property_readonly("groups", [](const Contraction& c) { return c.matrix.groups; })
      .def_property_readonly(
          "channels", [](const Contraction& c) { return c.matrix.channels; },
          "Channels of the result in a group.")
      .def_property_readonly(
          "columns", [](const Contraction& c) { return c.matrix.columns; }, "Columns in a group.")
      .def(
          "rows_of",
          [](const Contraction& c, const Floats& weight) {
            const quant::WeightMatrix& matrix = c.matrix;
            if (weight.size() != matrix.size())
              throw LayoutMismatch({.where = "accuracy",
                                    .what = "the number of weights",
                                    .expected = std::to_string(matrix.size()),
                                    .got = std::to_string(weight.size())});
            Floats out({matrix.groups, matrix.channels, matrix.columns});
            float* to = out.mutable_data();
            for (std::int64_t g = 0; g < matrix.groups; ++g)
              for (std::int64_t r = 0; r < matrix.channels; ++r)
                for (std::int64_t k = 0; k < matrix.columns; ++k)
                  *to++ = weight.data()[matrix.index(g, r, k)];
            return out;
          },
          py::arg("weight"), "The weight as an array [groups, channels, columns].");
  m.def(
      "contractions",
      [](const SharedGraph& graph) {
        std::vector<std::string> names;
        for (const Node& node : graph->nodes())
          if (quant::contraction_of(*graph, node)) names.push_back(graph->node_name(node));
        return names;
      },
      py::arg("graph"), "The names of the nodes that multiply by a constant weight.");
}

// The lower triangles of the sums as symmetric matrices, in the units of the samples.
py::array_t<double> moments_array(const SecondMoments& moments) {
  const std::int64_t n = moments.columns();
  py::array_t<double> out({moments.groups(), n, n});
  double* to = out.mutable_data();
  for (std::int64_t group = 0; group < moments.groups(); ++group, to += n * n) {
    const std::int64_t* from = moments.sums(group).data();
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j <= i; ++j)
        to[i * n + j] = to[j * n + i] = static_cast<double>(*from++) * moments.unit();
  }
  return out;
}

void bind_second_moments(py::module_& m) {
  py::class_<SecondMoments> type(m, "SecondMoments",
                                 "Exact sums of the products of the columns that a contraction reads.");
  type.def(py::init(
               [](const Contraction& contraction, double scale, std::int64_t zero_point, std::int64_t qmin,
                  std::int64_t qmax) { return SecondMoments(contraction, {scale, zero_point, qmin, qmax}); }),
           py::arg("contraction"), py::kw_only(), py::arg("scale"), py::arg("zero_point"), py::arg("qmin"),
           py::arg("qmax"))
      .def_static(
          "of_range",
          [](const Contraction& contraction, const quant::Range& range) {
            return SecondMoments(contraction, quant::wide_grid(range));
          },
          py::arg("contraction"), py::arg("range"),
          "A state whose samples are rounded to 16 bits of this range.")
      .def(
          "observe",
          [](SecondMoments& moments, const Contraction& contraction, const Floats& samples) {
            const Shape shape = shape_of(samples);
            const std::span<const float> values = values_of(samples);
            const py::gil_scoped_release release;
            moments.observe(contraction, values, shape);
          },
          py::arg("contraction"), py::arg("samples"),
          "Adds the columns that the contraction reads from an input.")
      .def_property_readonly("rows", &SecondMoments::rows, "The number of rows that were observed.")
      .def_property_readonly("scale", [](const SecondMoments& moments) { return moments.grid().scale; })
      .def("means", &moments_array, "The mean products of columns, as an array [groups, columns, columns].");
  bind_state(type);
}

template <class State>
void bind_observe_channels(py::class_<State>& type) {
  type.def(
      "observe",
      [](State& state, const Floats& samples, py::ssize_t axis) {
        state.observe(values_of(samples), around(samples, axis));
      },
      py::arg("samples"), py::arg("axis"), "Adds samples whose channels are on this axis.");
  bind_state(type);
}

void bind_channel_statistics(py::module_& m) {
  py::class_<ChannelAbsMax> most(m, "ChannelAbsMax", "The largest magnitude of each channel.");
  most.def(py::init<std::int64_t>(), py::arg("channels"))
      .def_property_readonly("most", [](const ChannelAbsMax& state) { return vector_of(state.most()); });
  bind_observe_channels(most);
  py::class_<ChannelSums> sums(m, "ChannelSums", "The exact sum of each channel.");
  sums.def(py::init<std::int64_t, int>(), py::arg("channels"), py::arg("exponent"))
      .def_property_readonly("count", &ChannelSums::count, "The samples of each channel.")
      .def_property_readonly("exponent", &ChannelSums::exponent,
                             "Samples are at most 2**exponent in magnitude.")
      .def("means",
           [](const ChannelSums& state) { return vector_of(std::span<const double>(state.means())); });
  bind_observe_channels(sums);
  m.def("sums_exponent", &quant::sums_exponent, py::arg("range"), py::arg("differences") = false,
        "The exponent of ChannelSums for samples in this range, or for differences of two of them.");
}

py::dict gptq(const Contraction& contraction, const SecondMoments& moments, const Floats& weights,
              const py::handle& qparams, double damping, std::int64_t block, bool activation_order,
              bool fit_groups, bool search) {
  const QParamsRef grid = qparams_from(qparams);
  if (grid == nullptr)
    throw InvalidGraph({.where = "gptq", .what = "qparams", .expected = "a QParams", .got = "None"});
  const quant::GptqOptions options{.damping = damping,
                                   .block = block,
                                   .activation_order = activation_order,
                                   .fit_groups = fit_groups,
                                   .search = search};
  const Shape shape = shape_of(weights);
  const std::span<const float> values = values_of(weights);
  quant::GptqResult result;
  {
    const py::gil_scoped_release release;
    result = quant::gptq(contraction, moments, values, shape, *grid, options);
  }
  py::dict out;
  out["weights"] = like(weights, result.weights);
  out["qparams"] = qparams_to_python(std::make_shared<const QParams>(std::move(result.qparams)));
  out["error_before"] = result.error_before;
  out["error_after"] = result.error_after;
  out["damping"] = result.damping;
  out["dead_columns"] = result.dead_columns;
  out["nearest_channels"] = result.nearest_channels;
  return out;
}

void bind_rounding(py::module_& m) {
  m.def("gptq", &gptq, py::arg("contraction"), py::arg("moments"), py::arg("weights"), py::arg("qparams"),
        py::kw_only(), py::arg("damping") = quant::GptqOptions().damping,
        py::arg("block") = quant::GptqOptions().block,
        py::arg("activation_order") = quant::GptqOptions().activation_order,
        py::arg("fit_groups") = quant::GptqOptions().fit_groups,
        py::arg("search") = quant::GptqOptions().search,
        "Rounds weights so that the errors of columns cancel each other.");
  m.def(
      "group_scales",
      [](const Floats& weights, std::int64_t axis, std::int64_t group_axis, std::int64_t group_size,
         std::int64_t qmin, std::int64_t qmax, bool search, float least_scale) {
        const std::vector<float> scales =
            quant::group_scales(values_of(weights), shape_of(weights), axis, {group_axis, group_size},
                                {.qmin = qmin, .qmax = qmax, .search = search, .least_scale = least_scale});
        return vector_of(std::span<const float>(scales));
      },
      py::arg("weights"), py::arg("axis"), py::arg("group_axis"), py::arg("group_size"), py::kw_only(),
      py::arg("qmin"), py::arg("qmax"), py::arg("search") = true,
      py::arg("least_scale") = quant::ScaleSearch().least_scale,
      "Scales of least squared error, one for each channel and each group.");
  m.def(
      "weight_error",
      [](const Contraction& contraction, const SecondMoments& moments, const Floats& weights,
         const Floats& rounded) {
        const quant::WeightError error =
            quant::weight_error(contraction, moments, values_of(weights), values_of(rounded));
        return py::make_tuple(error.error, error.signal,
                              vector_of(std::span<const double>(error.channel_errors)));
      },
      py::arg("contraction"), py::arg("moments"), py::arg("weights"), py::arg("rounded"),
      "The expected squared error and the power of a row of the result, and the errors of its channels.");
}

py::array_t<double> numbers(const std::vector<double>& values) {
  return vector_of(std::span<const double>(values));
}

py::tuple equalize(const SharedGraph& graph) {
  quant::Equalized equalized;
  {
    const py::gil_scoped_release release;
    equalized = quant::equalize(*graph);
  }
  py::list rows;
  for (const quant::EqualizedPair& pair : equalized.pairs) {
    py::dict row;
    row["first"] = pair.first;
    row["readers"] = pair.readers;
    row["between"] = pair.between;
    row["scales"] = numbers(pair.scales);
    row["first_before"] = numbers(pair.first_before);
    row["first_after"] = numbers(pair.first_after);
    row["reader_before"] = numbers(pair.reader_before);
    row["reader_after"] = numbers(pair.reader_after);
    rows.append(row);
  }
  return py::make_tuple(std::make_shared<Graph>(std::move(equalized.graph)), rows);
}

py::tuple smooth(const SharedGraph& graph, const std::map<std::string, ChannelAbsMax>& magnitudes,
                 double alpha) {
  quant::Smoothed smoothed;
  {
    const py::gil_scoped_release release;
    smoothed = quant::smooth(*graph, magnitudes, alpha);
  }
  py::list rows;
  for (const quant::SmoothedInput& input : smoothed.inputs) {
    py::dict row;
    row["source"] = input.source;
    row["readers"] = input.readers;
    row["scales"] = numbers(input.scales);
    row["input_before"] = numbers(input.input_before);
    row["input_after"] = numbers(input.input_after);
    row["weight_before"] = numbers(input.weight_before);
    row["weight_after"] = numbers(input.weight_after);
    row["skipped"] = input.skipped;
    rows.append(row);
  }
  return py::make_tuple(std::make_shared<Graph>(std::move(smoothed.graph)), rows);
}

void bind_rewrites(py::module_& m) {
  m.def("equalize", &equalize, py::arg("graph"),
        "Moves scales of channels between weights until their ranges match: the graph, and a row for each "
        "pair.");
  m.def("smooth", &smooth, py::arg("graph"), py::arg("magnitudes"), py::arg("alpha") = 0.5,
        "Moves ranges of activations into weights: the graph, and a row for each source or skipped node.");
  m.def(
      "correct_bias",
      [](const SharedGraph& graph, const std::string& node, const std::vector<double>& errors) {
        return std::make_shared<Graph>(quant::correct_bias(*graph, node, errors));
      },
      py::arg("graph"), py::arg("node"), py::arg("errors"),
      "The graph in which the result of a node is less by one number for each channel.");
}

}  // namespace

void bind_accuracy(py::module_& m) {
  bind_contraction(m);
  bind_second_moments(m);
  bind_channel_statistics(m);
  bind_rounding(m);
  bind_rewrites(m);
}

}  // namespace tosaic::python
