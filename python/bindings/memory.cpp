// Binds treadle.memory.plan_arena() and the class Allocator, with which Python programs can implement allocators.
#include "treadle/memory.h"

#include "bindings.h"
#include "treadle/allocator.h"
#include "treadle/out_of_memory.h"

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

// Makes an allocator that calls Python functions, on any thread. `allocate` returns an address. Blocks that live longer than the Python
// interpreter are never freed.
std::shared_ptr<Allocator> python_allocator(nb::object allocate, nb::object free, const std::string& name) {
  AllocatorCallbacks callbacks;
  callbacks.name = name;
  callbacks.allocate = [call = keep(std::move(allocate)), name](size_t size_bytes, MemoryClass) -> void* {
    nb::gil_scoped_acquire gil;
    try {
      const nb::object address = (*call)(size_bytes);
      return address.is_none() ? nullptr : reinterpret_cast<void*>(nb::cast<uintptr_t>(address));
    } catch (const std::exception& error) {  // the Python function or the cast of its result has failed
      throw OutOfMemory("the allocator \"" + name + "\": " + error.what());
    }
  };
  callbacks.free = [call = keep(std::move(free))](void* data, size_t size_bytes, MemoryClass) {
    if (!Py_IsInitialized()) return;
    nb::gil_scoped_acquire gil;
    try {
      (*call)(reinterpret_cast<uintptr_t>(data), size_bytes);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("an allocator's free()");
    }
  };
  return std::make_shared<CallbackAllocator>(std::move(callbacks));
}

}  // namespace

nb::dict memory_dict(const MemoryStatistics& statistics) {
  nb::dict result;
  auto add = [&](std::string_view name, const MemoryUsage& usage) {
    nb::dict entry;
    entry["bytes"] = usage.bytes;
    entry["peak_bytes"] = usage.peak_bytes;
    entry["num_allocations"] = usage.num_allocations;
    result[nb::str(name.data(), name.size())] = entry;
  };
  for (size_t c = 0; c < kNumMemoryClasses; ++c) add(memory_class_name(static_cast<MemoryClass>(c)), statistics.classes[c]);
  add("total", statistics.total);
  return result;
}

void register_memory(nb::module_& module) {
  nb::class_<PyAllocator>(
      module, "Allocator",
      "Where tensors' memory comes from: for SessionOptions.allocator and RunOptions.output_allocators. Several sessions may share one.")
      .def(
          "__init__",
          [](PyAllocator* self, nb::object allocate, nb::object free, const std::string& name) {
            if (!PyCallable_Check(allocate.ptr()) || !PyCallable_Check(free.ptr()))
              throw Error(ErrorCode::invalid_argument, "an allocator needs the functions allocate and free");
            new (self) PyAllocator{python_allocator(std::move(allocate), std::move(free), name)};
          },
          nb::arg("allocate"), nb::arg("free"), nb::arg("name") = "custom",
          "allocate(size_bytes) returns an address that is a multiple of 64, or None if there is no memory; free(address, size_bytes) "
          "takes it back. "
          "Both are called on any thread, also after a session is gone, for as long as a tensor of theirs lives.")
      .def_static(
          "named", [](const std::string& kinds) { return PyAllocator{make_allocator(kinds)}; }, nb::arg("kinds"),
          "One of plain, arena, guard, nan, recording, or several joined by \"+\".")
      .def_prop_ro("name", [](const PyAllocator& self) { return std::string(self.allocator->name()); })
      .def(
          "statistics",
          [](const PyAllocator& self) {
            const auto* counting = dynamic_cast<const CallbackAllocator*>(self.allocator.get());
            if (!counting) throw Error(ErrorCode::not_implemented, "allocators that go by a name do not count; their sessions do");
            return memory_dict(counting->statistics());
          },
          "Of one made of functions: bytes in use by class, the most so far, and how often it was asked.")
      .def(
          "trim", [](const PyAllocator& self) { return self.allocator->trim(); }, "Gives idle memory back to the system. Returns bytes.");
  nb::class_<PyArenaPlan>(module, "ArenaPlan", "Offsets of buffers in one arena.")
      .def_ro("offsets", &PyArenaPlan::offsets, "In bytes, in the order of the buffers.")
      .def_ro("size_bytes", &PyArenaPlan::size_bytes, "Of the arena.")
      .def_ro("lower_bound_bytes", &PyArenaPlan::lower_bound_bytes, "No plan can be smaller.")
      .def_ro("strategy", &PyArenaPlan::strategy, "What found the plan.");
  module.def(
      "shared_weights",
      [] {
        const SharedWeightsStatistics statistics = shared_weights_statistics();
        nb::dict result;
        result["num_constants"] = statistics.num_constants;
        result["constant_bytes"] = statistics.constant_bytes;
        result["num_packed"] = statistics.num_packed;
        result["packed_bytes"] = statistics.packed_bytes;
        result["hits"] = statistics.hits;
        result["misses"] = statistics.misses;
        return result;
      },
      nb::sig("def shared_weights() -> dict[str, int]"),
      "What models and sessions of this process hold in common, each counted once: num_constants, constant_bytes, num_packed, "
      "packed_bytes; and how "
      "often one was found in place of a copy (hits) or not (misses) since the process began.");
  module.def("plan_arena", &plan_arena, nb::arg("sizes_bytes"), nb::arg("first"), nb::arg("last"), nb::kw_only(), nb::arg("alignment") = 64,
             nb::arg("capacity_bytes") = 0, nb::arg("time_limit_seconds") = 10.0,
             "Assigns every buffer an offset in bytes; buffer i is alive in the steps first[i] <= step < last[i], and buffers that are "
             "alive together get disjoint bytes. Greedy plans first, then an exact search, which ends with the first plan that is not "
             "larger than `capacity_bytes`; 0: it looks for the smallest arena.");
}

}  // namespace treadle::python
