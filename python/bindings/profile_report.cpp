// Converts a profile's report to objects of the classes in treadle.profiling.
#include "treadle/profile_report.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "profile.h"

namespace treadle::python {
namespace {

// Makes objects of one class of treadle.profiling from the class's fields by name.
class ProfileClass {
 public:
  explicit ProfileClass(const char* name) : class_(nb::module_::import_("treadle.profiling").attr(name)) {}
  nb::object operator()(const nb::dict& fields) const { return class_(**fields); }

 private:
  nb::object class_;
};

template <typename T>
nb::tuple tuple_of(const std::vector<T>& values) {
  return nb::tuple(nb::cast(values));
}

nb::object text_or_none(const std::string& text) { return text.empty() ? nb::none() : nb::object(nb::cast(text)); }

nb::object shape_of(const ProfiledOperand& operand) {
  if (!operand.shape) return nb::none();
  return tuple_of(std::vector<int64_t>(operand.shape->begin(), operand.shape->end()));
}

nb::dict dict_of(const NamedBytes& named) {
  nb::dict made;
  for (const auto& [name, bytes] : named) made[nb::cast(name)] = bytes;
  return made;
}

nb::dict dict_of(const NamedSeries& named) {
  nb::dict made;
  for (const auto& [name, bytes] : named) made[nb::cast(name)] = tuple_of(bytes);
  return made;
}

// Returns a tuple (name, class of memory, bytes) for each holder of memory.
template <typename Holding>
nb::tuple holdings(const std::vector<Holding>& list) {
  nb::list made;
  for (const HoldingReport& h : list) made.append(nb::make_tuple(text_or_none(h.name), h.memory_class, h.bytes));
  return nb::tuple(made);
}

// Makes an object for each of the nested items, outer items first. `make` gets an item and its path: the names of the items around it, and
// its own name.
template <typename Item, typename Make>
nb::list nested(const std::vector<Item>& items, const Make& make) {
  std::vector<std::vector<std::string>> paths;
  nb::list made;
  for (const Item& item : items) {
    std::vector<std::string> path;
    if (item.parent >= 0) path = paths[static_cast<size_t>(item.parent)];
    path.push_back(item.name);
    paths.push_back(path);
    made.append(make(item, tuple_of(path)));
  }
  return made;
}

class NodeMaker {
 public:
  explicit NodeMaker(const std::vector<NodeReport>& nodes) : nodes_(nodes) {}

  nb::object operator()(const NodeReport& node) const {
    nb::dict d;
    d["name"] = node.name, d["op_type"] = node.op_type, d["kernel"] = text_or_none(node.kernel), d["phase"] = text_or_none(node.phase);
    d["sources"] = tuple_of(node.sources), d["layers"] = tuple_of(node.layers), d["passes"] = tuple_of(node.passes);
    d["input_shapes"] = shapes(node.inputs), d["output_shapes"] = shapes(node.outputs);
    d["inputs"] = operands(node.inputs), d["outputs"] = operands(node.outputs);
    const ProfileTimes ms = node.ms.value_or(ProfileTimes{});
    d["calls"] = node.calls.value_or(0), d["share"] = node.share.value_or(0), d["barrier_ms"] = node.barrier_ms.value_or(0);
    d["median_ms"] = ms.median, d["p10_ms"] = ms.p10, d["p90_ms"] = ms.p90;
    d["flops"] = node.flops, d["bytes"] = node.bytes, d["gflops"] = node.gflops, d["gb_per_s"] = node.gb_per_s;
    d["of_peak"] = node.of_peak, d["ready_ms"] = node.ready_ms, d["waited_ms"] = node.waited_ms;
    d["sequence"] = node.sequence >= 0 ? nb::object(nb::cast(node.sequence)) : nb::none();
    nb::list phases, unused, forward;
    for (const KernelPhaseReport& p : node.kernel_phases) {
      nb::dict phase;
      phase["name"] = p.name, phase["calls"] = p.calls, phase["median_ms"] = p.ms.median, phase["share"] = p.share;
      phases.append(kernel_phase_(phase));
    }
    for (const ProfiledUnusedKernel& u : node.unused_kernels) {
      nb::dict kernel;
      kernel["name"] = u.name, kernel["why"] = u.why;
      unused.append(unused_kernel_(kernel));
    }
    for (int32_t i : node.forward) forward.append(nodes_[static_cast<size_t>(i)].name);
    d["kernel_phases"] = nb::tuple(phases), d["unused_kernels"] = nb::tuple(unused), d["forward"] = nb::tuple(forward);
    return node_(d);
  }

 private:
  static nb::tuple shapes(const std::vector<ProfiledOperand>& operands) {
    nb::list made;
    for (const ProfiledOperand& operand : operands) made.append(shape_of(operand));
    return nb::tuple(made);
  }

  nb::tuple operands(const std::vector<ProfiledOperand>& operands) const {
    nb::list made;
    for (const ProfiledOperand& o : operands) {
      nb::dict d;
      d["name"] = o.name, d["dtype"] = text_or_none(o.dtype == DType::undefined ? "" : std::string(name_of(o.dtype)));
      d["shape"] = shape_of(o), d["strides"] = o.shape ? nb::object(tuple_of(o.strides())) : nb::none();
      d["constant"] = o.constant, d["value"] = text_or_none(o.value), d["shares"] = text_or_none(o.shares);
      made.append(operand_(d));
    }
    return nb::tuple(made);
  }

  const std::vector<NodeReport>& nodes_;
  const ProfileClass node_{"ProfiledNode"}, operand_{"ProfiledOperand"}, kernel_phase_{"KernelPhase"}, unused_kernel_{"UnusedKernel"};
};

nb::list nodes_of(const PyProfile& self) {
  const NodeMaker make(self.report.nodes);
  nb::list made;
  for (const NodeReport& node : self.report.nodes) made.append(make(node));
  return made;
}

nb::dict where_of(const PyProfile& self) {
  nb::dict parts;
  for (const ProfileReport::Part& part : self.report.where) parts[nb::cast(part.title)] = part.ms;
  return parts;
}

nb::list pool_of(const PyProfile& self) {
  const ProfileClass make("PoolThread");
  nb::list made;
  for (const ProfileReport::PoolThread& t : self.report.pool) {
    nb::dict d;
    d["name"] = t.name, d["calls"] = t.calls, d["running"] = t.states[ProfiledPoolThread::running];
    d["no_ready_work"] = t.states[ProfiledPoolThread::no_ready_work], d["barrier"] = t.states[ProfiledPoolThread::barrier];
    d["asleep"] = t.states[ProfiledPoolThread::asleep];
    made.append(make(d));
  }
  return made;
}

nb::list ranges_of(const PyProfile& self) {
  const ProfileClass make("ProfiledRange");
  return nested(self.report.ranges, [&](const ProfileReport::Range& r, const nb::tuple& path) {
    nb::dict d;
    d["name"] = r.name, d["path"] = path, d["calls"] = r.calls, d["median_ms"] = r.ms.median, d["total_ms"] = r.total_ms;
    d["self_ms"] = r.self_ms, d["runs_ms"] = r.runs_ms, d["python"] = r.python;
    return make(d);
  });
}

nb::list load_phases_of(const PyProfile& self) {
  const ProfileClass make("LoadPhase");
  return nested(self.report.load, [&](const ProfileReport::Load& l, const nb::tuple& path) {
    nb::dict d;
    d["name"] = l.name, d["path"] = path, d["calls"] = l.calls, d["start_ms"] = l.start_ms, d["total_ms"] = l.ms;
    return make(d);
  });
}

nb::list marks_of(const PyProfile& self) {
  nb::list made;
  if (!self.report.marks || !self.report.timeline) return made;
  const ProfileClass make("ProfileMark");
  const ProfileReport::Marks& marks = *self.report.marks;
  for (size_t i = 0; i < marks.name.size(); ++i) {
    nb::dict d;
    d["name"] = marks.name[i], d["ms"] = marks.ms[i], d["thread"] = self.report.timeline->threads.at(static_cast<size_t>(marks.thread[i]));
    made.append(make(d));
  }
  return made;
}

// Returns the model's layers. The phases of a training step are not layers, so paths of layers do not contain their names.
nb::list layers_of(const PyProfile& self) {
  const ProfileClass make("ProfiledLayer");
  std::vector<std::pair<std::string, std::vector<std::string>>> places;
  nb::list made;
  for (const ProfileReport::Layer& layer : self.report.layers) {
    std::pair<std::string, std::vector<std::string>> place;
    if (layer.parent >= 0) place = places[static_cast<size_t>(layer.parent)];
    if (layer.is_phase)
      place = {layer.name, {}};
    else
      place.second.push_back(layer.name);
    places.push_back(place);
    if (layer.is_phase) continue;
    nb::dict d;
    d["name"] = layer.name, d["path"] = tuple_of(place.second), d["phase"] = text_or_none(place.first), d["nodes"] = layer.nodes;
    d["mean_ms"] = layer.ms, d["self_ms"] = layer.self_ms, d["share"] = layer.share;
    made.append(make(d));
  }
  return made;
}

nb::object measured_of(const MeasuredMemoryReport& m) {
  nb::dict d;
  d["before"] = dict_of(m.before), d["peak_bytes"] = m.peak.bytes, d["peak_ms"] = m.peak.ms, d["at_peak"] = dict_of(m.peak.classes);
  d["holders"] = holdings(m.peak.holders), d["times_ms"] = tuple_of(m.timeline.ms), d["timeline"] = dict_of(m.timeline.bytes);
  d["num_events"] = m.events, d["refused"] = holdings(m.refused), d["num_more_holders"] = m.peak.more_holders;
  d["more_holders_bytes"] = m.peak.more_holders_bytes;
  return ProfileClass("MeasuredMemory")(d);
}

nb::object memory_of(const PyProfile& self) {
  const MemorySection memory = self.report.memory.value_or(MemorySection{});
  const MemorySection::Peak peak = memory.peak.value_or(MemorySection::Peak{});
  nb::list nodes;
  if (memory.peak)
    for (int32_t i : memory.steps) nodes.append(self.report.nodes[static_cast<size_t>(i)].name);
  nb::dict d, at_peak, live = dict_of(memory.live);
  for (const HoldingReport& value : peak.values) at_peak[nb::cast(value.name)] = value.bytes;
  d["nodes"] = nb::tuple(nodes), d["peak_step"] = peak.step, d["peak_bytes"] = peak.bytes, d["at_peak"] = at_peak;
  d["activation_bytes"] = live.attr("get")("activations", nb::tuple()), d["scratch_bytes"] = live.attr("get")("scratch", nb::tuple());
  d["arena_bytes"] = memory.arena_bytes, d["lower_bound_bytes"] = memory.arena_lower_bound_bytes, d["live"] = live;
  d["measured"] = memory.measured ? measured_of(*memory.measured) : nb::none();
  return ProfileClass("MemoryTimeline")(d);
}

// The contents of a file as an array, which Python gets without a copy, because a trace of a million events has 80 MB.
using FileContents = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;

FileContents contents_of(const PyProfile& self, const std::string& path) {
  std::unique_ptr<std::string> text;
  {
    nb::gil_scoped_release release;
    text = std::make_unique<std::string>(profile_file(path, self.report, &self.profile));
  }
  const char* data = text->data();
  const size_t size = text->size();
  const nb::capsule owner(text.release(), [](void* held) noexcept { delete static_cast<std::string*>(held); });
  return FileContents(reinterpret_cast<const uint8_t*>(data), {size}, owner);
}

}  // namespace

void register_profile_report(nb::module_& module) {
  nb::class_<PyProfile>(module, "NativeProfile")
      .def_static(
          "read",
          [](const std::string& json) {
            return PyProfile{{}, read_profile(json)};
          },
          nb::arg("json"), nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("json", [](const PyProfile& self) { return profile_to_json(self.report); })
      .def_prop_ro("recorded", [](const PyProfile& self) { return self.report.runs.recorded; })
      .def_prop_ro("median_ms", [](const PyProfile& self) { return self.report.runs.ms ? self.report.runs.ms->median : 0; })
      .def_prop_ro("events_lost", [](const PyProfile& self) { return self.report.profiler ? self.report.profiler->events_lost : 0; })
      .def_prop_ro("nodes", &nodes_of)
      .def_prop_ro("where", &where_of)
      .def_prop_ro("pool", &pool_of)
      .def_prop_ro("ranges", &ranges_of)
      .def_prop_ro("marks", &marks_of)
      .def_prop_ro("layers", &layers_of)
      .def_prop_ro("load_phases", &load_phases_of)
      .def("memory", &memory_of)
      .def("contents", &contents_of, nb::arg("path"))
      .def(
          "table",
          [](const PyProfile& self, int top, const std::string& sort, bool memory) {
            return profile_to_table(self.report, {.top = top, .memory = memory, .sort = sort});
          },
          nb::arg("top"), nb::arg("sort"), nb::arg("memory"))
      .def(
          "tree",
          [](const PyProfile& self, int depth, bool nodes) { return profile_to_tree(self.report, {.depth = depth, .nodes = nodes}); },
          nb::arg("depth"), nb::arg("nodes"))
      .def(
          "compare",
          [](const PyProfile& self, const PyProfile& before, double tolerance, int top) {
            const ProfileDifference difference = compare_profiles(before.report, self.report, tolerance);
            return nb::make_tuple(difference_to_table(difference, {.top = top}), difference_to_json(difference));
          },
          nb::arg("before"), nb::arg("tolerance"), nb::arg("top"));
}

}  // namespace treadle::python
