// treadle.memory.plan_arena
#include "treadle/memory.h"

#include "bindings.h"

namespace treadle::python {
namespace {

struct PyArenaPlan {
  std::vector<size_t> offsets;
  size_t size_bytes, lower_bound_bytes;
  std::string strategy;
};

PyArenaPlan plan_arena(const std::vector<size_t>& sizes_bytes, const std::vector<int32_t>& first, const std::vector<int32_t>& last,
                       size_t alignment, size_t capacity_bytes, double time_limit_seconds) {
  if (first.size() != sizes_bytes.size() || last.size() != sizes_bytes.size())
    throw Error(ErrorCode::invalid_argument, "plan_arena: " + std::to_string(sizes_bytes.size()) + " sizes, " +
                                                 std::to_string(first.size()) + " first and " + std::to_string(last.size()) +
                                                 " last steps; expected as many of each");
  std::vector<memory::Buffer> buffers;
  for (size_t i = 0; i < sizes_bytes.size(); ++i) buffers.push_back({sizes_bytes[i], first[i], last[i]});
  memory::ArenaPlan plan;
  {
    nb::gil_scoped_release release;
    plan = memory::plan_arena_exactly(buffers,
                                      {.alignment = alignment, .capacity_bytes = capacity_bytes, .time_limit_seconds = time_limit_seconds});
  }
  return {std::move(plan.offsets), plan.size_bytes, plan.lower_bound_bytes, std::string(plan.strategy)};
}

}  // namespace

void register_memory(nb::module_& module) {
  nb::class_<PyArenaPlan>(module, "ArenaPlan", "Offsets of buffers in one arena.")
      .def_ro("offsets", &PyArenaPlan::offsets, "In bytes, in the order of the buffers.")
      .def_ro("size_bytes", &PyArenaPlan::size_bytes, "Of the arena.")
      .def_ro("lower_bound_bytes", &PyArenaPlan::lower_bound_bytes, "No plan can be smaller.")
      .def_ro("strategy", &PyArenaPlan::strategy, "What found the plan.");
  module.def("plan_arena", &plan_arena, nb::arg("sizes_bytes"), nb::arg("first"), nb::arg("last"), nb::kw_only(), nb::arg("alignment") = 64,
             nb::arg("capacity_bytes") = 0, nb::arg("time_limit_seconds") = 10.0,
             "Assigns every buffer an offset in bytes; buffer i is alive in the steps first[i] <= step < last[i], and buffers that are "
             "alive together get disjoint bytes. Greedy plans first, then an exact search, which ends with the first plan that is not "
             "larger than `capacity_bytes`; 0: it looks for the smallest arena.");
}

}  // namespace treadle::python
