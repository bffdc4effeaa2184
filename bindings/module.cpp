// The extension module tosaic._core. It calls the bind function of each area.
#include "bind.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ core of tosaic.";
  m.attr("__version__") = TOSAIC_VERSION;
#ifdef __USE_FORTIFY_LEVEL
  m.attr("FORTIFY_SOURCE") = __USE_FORTIFY_LEVEL;
#else
  m.attr("FORTIFY_SOURCE") = 0;
#endif
  tosaic::python::bind_errors(m);
  tosaic::python::bind_constant(m);
  tosaic::python::bind_ir(m);
  tosaic::python::bind_graph_builder(m);
  tosaic::python::bind_call_arguments(m);
  tosaic::python::bind_exec(m);
  tosaic::python::bind_memory(m);
  tosaic::python::bind_compare(m);
  tosaic::python::bind_devices(m);
  tosaic::python::bind_groups(m);
  tosaic::python::bind_layout(m);
  tosaic::python::bind_pipeline(m);
  tosaic::python::bind_observe(m);
  tosaic::python::bind_accuracy(m);
  tosaic::python::bind_rewriter(m);
  tosaic::python::bind_planner(m);
  tosaic::python::bind_tosa(m);
  tosaic::python::bind_annotation(m);
  tosaic::python::bind_calibrate(m);
  tosaic::python::bind_boundary(m);
  tosaic::python::bind_claimants(m);
  tosaic::python::bind_cost(m);
  tosaic::python::bind_pte(m);
  tosaic::python::bind_pt2(m);
}
