// Bindings of quant/observe/: ranges and histograms of f32 samples, and their quantization parameters.
#include "tosaic/quant/observe/observe.h"

#include <pybind11/stl.h>

#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bind.h"

namespace tosaic::python {
namespace {

using quant::ChannelShape;
using quant::Histogram;
using quant::QRange;
using quant::Range;

// The number of elements before, on and after an axis. Throws LayoutMismatch if the array has no such axis.
ChannelShape channel_shape(const Floats& samples, py::ssize_t axis) {
  const py::ssize_t rank = samples.ndim();
  if (axis < -rank || axis >= rank)
    throw LayoutMismatch({.where = "observe",
                          .what = "the axis of the channels",
                          .expected = "an axis of an array of rank " + std::to_string(rank),
                          .got = std::to_string(axis)});
  if (axis < 0) axis += rank;
  ChannelShape shape{.outer = 1, .channels = samples.shape(axis), .inner = 1};
  for (py::ssize_t i = 0; i < rank; ++i) {
    if (i < axis) shape.outer *= samples.shape(i);
    if (i > axis) shape.inner *= samples.shape(i);
  }
  return shape;
}

// Moves states of Python's observers into one array, and moves them back at the end of the scope.
template <class Observer>
class Lent {
 public:
  explicit Lent(std::vector<Observer*> owners) : owners_(std::move(owners)), states_(owners_.size()) {
    swap();
  }
  ~Lent() { swap(); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  [[nodiscard]] std::span<Observer> states() { return states_; }

 private:
  void swap() {
    for (std::size_t i = 0; i < owners_.size(); ++i) std::swap(*owners_[i], states_[i]);
  }
  std::vector<Observer*> owners_;
  std::vector<Observer> states_;
};

template <class Observer>
void observe_each(std::vector<Observer*> observers, const Floats& samples, py::ssize_t axis) {
  Lent<Observer> lent(std::move(observers));
  quant::observe_channels(values_of(samples), channel_shape(samples, axis), lent.states());
}

py::bytes histogram_to_bytes(const Histogram& histogram) {
  const std::vector<std::byte> bytes = histogram.to_bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Histogram histogram_from_bytes(const py::bytes& bytes) {
  const auto text = static_cast<std::string_view>(bytes);
  return Histogram::from_bytes(std::as_bytes(std::span(text)));
}

void bind_range(py::module_& m) {
  py::class_<Range>(m, "ObservedRange", "The bounds of all finite samples, and the number of samples.")
      .def(py::init([](float least, float greatest, std::uint64_t finite, std::uint64_t infinities,
                       std::uint64_t nans) { return Range{least, greatest, finite, infinities, nans}; }),
           py::arg("least") = Range().least, py::arg("greatest") = Range().greatest, py::arg("finite") = 0,
           py::arg("infinities") = 0, py::arg("nans") = 0)
      .def_readonly("least", &Range::least, "The least finite sample; infinity if there is none.")
      .def_readonly("greatest", &Range::greatest, "The greatest finite sample; -infinity if there is none.")
      .def_readonly("finite", &Range::finite, "The number of finite samples.")
      .def_readonly("infinities", &Range::infinities, "The number of infinite samples.")
      .def_readonly("nans", &Range::nans, "The number of samples that are NaN.")
      .def(
          "observe", [](Range& range, const Floats& samples) { range.observe(values_of(samples)); },
          py::arg("samples"), "Adds the samples of an array.")
      .def("merge", &Range::merge, py::arg("other"), "Adds the samples of another range.")
      .def(
          "averaged",
          [](const Range& range, const Range& batch, float weight) {
            return quant::moving_average(range, batch, weight);
          },
          py::arg("batch"), py::arg("weight"), "This range, moved towards the bounds of a batch.")
      .def(
          "__eq__", [](const Range& a, const Range& b) { return a == b; }, py::is_operator())
      .def(py::pickle(
          [](const Range& r) { return py::make_tuple(r.least, r.greatest, r.finite, r.infinities, r.nans); },
          [](const py::tuple& state) {
            return Range{state[0].cast<float>(), state[1].cast<float>(), state[2].cast<std::uint64_t>(),
                         state[3].cast<std::uint64_t>(), state[4].cast<std::uint64_t>()};
          }));
}

void bind_mask_range(py::module_& m) {
  using quant::MaskRange;
  py::class_<MaskRange>(m, "ObservedMask", "The samples of a mask: numbers that hide a score, and others.")
      .def(py::init([](const Range& visible, const Range& hidden) { return MaskRange{visible, hidden}; }),
           py::arg("visible") = Range(), py::arg("hidden") = Range())
      .def_readonly("visible", &MaskRange::visible, "The numbers that hide no score.")
      .def_readonly("hidden", &MaskRange::hidden, "The numbers that hide a score.")
      .def(
          "observe", [](MaskRange& mask, const Floats& samples) { return mask.observe(values_of(samples)); },
          py::arg("samples"),
          "Adds the samples of an array. Returns the number of NaN and plus infinities, which take no part.")
      .def("merge", &MaskRange::merge, py::arg("other"), "Adds the samples of another mask.")
      .def(
          "__eq__", [](const MaskRange& a, const MaskRange& b) { return a == b; }, py::is_operator())
      .def(py::pickle(
          [](const MaskRange& mask) { return py::make_tuple(mask.visible, mask.hidden); },
          [](const py::tuple& state) { return MaskRange{state[0].cast<Range>(), state[1].cast<Range>()}; }));
}

void bind_histogram(py::module_& m) {
  py::class_<Histogram>(m, "Histogram", "An exact histogram of f32 samples.")
      .def(py::init())
      .def_property_readonly("range", &Histogram::range, "The bounds and the number of the samples.")
      .def_property_readonly("exponent", &Histogram::exponent,
                             "The bins are in the range from -2**exponent to 2**exponent.")
      .def_property_readonly(
          "counts",
          [](const Histogram& histogram) {
            std::vector<std::pair<std::int32_t, std::uint64_t>> counts;
            for (const Histogram::Bin& bin : histogram.bins()) counts.emplace_back(bin.place, bin.count);
            return counts;
          },
          "The bins that have samples, as (place, count), by value.")
      .def_property_readonly("means", &quant::means_of, "The means of the bins that have samples, ascending.")
      .def(
          "observe",
          [](Histogram& histogram, const Floats& samples) { histogram.observe(values_of(samples)); },
          py::arg("samples"), "Adds the samples of an array.")
      .def("merge", &Histogram::merge, py::arg("other"), "Adds the samples of another histogram.")
      .def("to_bytes", &histogram_to_bytes, "The state as bytes.")
      .def_static("from_bytes", &histogram_from_bytes, py::arg("state"),
                  "The histogram whose state was returned.")
      .def(
          "__eq__", [](const Histogram& a, const Histogram& b) { return a == b; }, py::is_operator())
      .def(py::pickle(&histogram_to_bytes, &histogram_from_bytes));
}

std::pair<double, std::int64_t> parts(const quant::Chosen& chosen) {
  return {chosen.scale, chosen.zero_point};
}

std::tuple<double, std::int64_t, double> parts(const quant::LeastError& found) {
  return {found.chosen.scale, found.chosen.zero_point, found.error};
}

// Defines a function that chooses a scale and a zero point for samples. Its last parameters in Python, by
// name only, are the range of integers. `names` are those of the other parameters.
template <class Result, class... Samples, class... Names>
void def_choice(py::module_& m, const char* name, Result (*choose)(const QRange&, Samples...),
                const char* doc, Names... names) {
  m.def(
      name,
      [choose](Samples... samples, std::int64_t qmin, std::int64_t qmax,
               const std::optional<std::int64_t>& zero_point, float least_scale) {
        return choose({.qmin = qmin,
                       .qmax = qmax,
                       .symmetric = zero_point.has_value(),
                       .zero_point = zero_point.value_or(0),
                       .least_scale = least_scale},
                      samples...);
      },
      py::arg(names)..., py::kw_only(), py::arg("qmin"), py::arg("qmax"), py::arg("symmetric_zero_point"),
      py::arg("least_scale"), doc);
}

}  // namespace

void bind_observe(py::module_& m) {
  bind_range(m);
  bind_mask_range(m);
  m.attr("MASK_HIDES") = quant::MaskRange::kHides;
  bind_histogram(m);
  m.def(
      "observe_channels",
      [](std::vector<Range*> ranges, const Floats& samples, py::ssize_t axis) {
        observe_each(std::move(ranges), samples, axis);
      },
      py::arg("observers"), py::arg("samples"), py::arg("axis"),
      "Adds the samples of each position of an axis to an observer of its own.");
  m.def(
      "observe_channels",
      [](std::vector<Histogram*> histograms, const Floats& samples, py::ssize_t axis) {
        observe_each(std::move(histograms), samples, axis);
      },
      py::arg("observers"), py::arg("samples"), py::arg("axis"),
      "Adds the samples of each position of an axis to an observer of its own.");
  def_choice(
      m, "range_qparams",
      +[](const QRange& to, const Range& range) { return parts(quant::range_qparams(range, to)); },
      "Scale and zero point for which the range just fits.", "range");
  def_choice(
      m, "mask_qparams",
      +[](const QRange& to, const quant::MaskRange& range) { return parts(quant::mask_qparams(range, to)); },
      "Scale and zero point with which what hides a score stays hidden.", "range");
  def_choice(
      m, "channel_range_qparams",
      +[](const QRange& to, const std::vector<Floats>& arrays, py::ssize_t axis) {
        std::vector<Range> ranges;
        for (const Floats& each : arrays) {
          const ChannelShape shape = channel_shape(each, axis);
          ranges.resize(static_cast<std::size_t>(shape.channels));
          quant::observe_channels(values_of(each), shape, std::span(ranges));
        }
        std::vector<std::pair<double, std::int64_t>> chosen;
        for (const Range& range : ranges) chosen.push_back(parts(quant::range_qparams(range, to)));
        return chosen;
      },
      "Scale and zero point of each channel, for which its range in all arrays just fits.", "arrays", "axis");
  def_choice(
      m, "percentile_qparams",
      +[](const QRange& to, const Histogram& histogram, double fraction) {
        return parts(quant::percentile_qparams(histogram, fraction, to));
      },
      "Scale and zero point for which the range that contains a share of the samples just fits.", "histogram",
      "fraction");
  def_choice(
      m, "least_entropy_qparams",
      +[](const QRange& to, const Histogram& histogram) {
        const quant::LeastEntropy found = quant::least_entropy_qparams(histogram, to);
        return std::tuple(found.chosen.scale, found.chosen.zero_point, found.divergence);
      },
      "Scale and zero point of least divergence between samples and quantized samples, and this divergence.",
      "histogram");
  def_choice(
      m, "least_error_qparams",
      +[](const QRange& to, const Histogram& histogram) {
        return parts(quant::least_error_qparams(histogram, to));
      },
      "Scale and zero point of least expected squared error, and this error of a sample.", "histogram");
  def_choice(
      m, "least_error_behind",
      +[](const QRange& to, const Histogram& histogram, const std::vector<double>& results) {
        return parts(quant::least_error_behind(histogram, to, results));
      },
      "Scale and zero point of least expected squared error of a function, of which `results` has the "
      "values at the means of the bins, and this error of a sample.",
      "histogram", "results");
  m.def(
      "expected_error",
      [](const Histogram& histogram, double scale, std::int64_t chosen, std::int64_t qmin,
         std::int64_t qmax) {
        return quant::expected_error(histogram, {.qmin = qmin, .qmax = qmax}, {scale, chosen});
      },
      py::arg("histogram"), py::kw_only(), py::arg("scale"), py::arg("zero_point"), py::arg("qmin"),
      py::arg("qmax"), "The expected squared error of a sample for these parameters.");
}

}  // namespace tosaic::python
