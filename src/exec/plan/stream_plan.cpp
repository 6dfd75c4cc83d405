#include "exec/plan/stream_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "exec/program/host_settings.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::exec {

using Memory = StreamPlan::Location::Memory;
using Queue = StreamPlan::Queue;

class StreamPlanner {
 public:
  StreamPlanner(const Program& program, const DevicePlacement& placement, int num_devices, const StreamOptions& options)
      : program_(program), placement_(placement), num_devices_(num_devices), options_(options), where_(program.slots().size()) {
    for (int device = 0; device < num_devices; ++device) {
      first_stream_.push_back(static_cast<int>(plan_.streams.size()));
      for (int s = 0; s < std::max(1, options.compute_streams); ++s) plan_.streams.push_back({device, Queue::compute});
      if (device == DevicePlacement::kHost) continue;  // the copy streams of the other device serve both directions
      plan_.streams.push_back({device, Queue::copy_in});
      plan_.streams.push_back({device, Queue::copy_out});
    }
    tails_.assign(plan_.streams.size(), kNoStep);
    lengths_.assign(plan_.streams.size(), 0);
  }

  StreamPlan plan() {
    std::set<SlotId> outputs;
    for (SlotId slot : program_.output_slots()) outputs.insert(slot_of(slot).root);
    for (InstructionId i : program_.instructions().ids()) {
      add_kernel(i);
      // Outputs are copied to the host as soon as they are made, in parallel with the kernels that follow.
      const Instruction& instruction = program_.instructions()[i];
      for (SlotId slot : program_.operands(instruction).subspan(instruction.num_inputs))
        if (slot != kNoSlot && outputs.contains(slot_of(slot).root)) location_on(slot, DevicePlacement::kHost);
    }
    make_bulks();
    return std::move(plan_);
  }

 private:
  // The locations that a step reads and writes. The fences of the step follow from them.
  struct Access {
    std::vector<LocationId> reads, writes;
  };
  struct History {
    StepId writer = kNoStep;
    std::vector<StepId> readers;  // steps that have read the location since
  };

  const Slot& slot_of(SlotId slot) const { return program_.slots()[slot]; }
  // A known value has its own bytes, even if it is a view of another value.
  SlotId key_of(SlotId slot) const { return slot_of(slot).location == LocationKind::known ? slot : slot_of(slot).root; }

  LocationId make_location(SlotId slot, int device) {
    StreamPlan::Location made{.slot = slot, .device = device};
    switch (slot_of(slot).location) {
      case LocationKind::constant: made.memory = Memory::constant; break;
      case LocationKind::arena:
        made.memory = Memory::planned;
        made.buffer = slot_of(slot).buffer;
        break;
      case LocationKind::held: made.memory = Memory::held; break;
      case LocationKind::feed:
      case LocationKind::known: made.memory = device == DevicePlacement::kHost ? Memory::given : Memory::held; break;
    }
    history_.emplace_back();
    return plan_.locations.add(std::move(made));
  }

  // Returns the location of the value on this device. If the device does not have the value yet, adds a copy step.
  LocationId location_on(SlotId slot, int device) {
    const SlotId key = key_of(slot);
    auto& places = where_[key];
    const LocationKind kind = slot_of(slot).location;
    if (places.empty()) {
      if (kind == LocationKind::arena || kind == LocationKind::held)
        throw Error(ErrorCode::internal, fmt::format("\"{}\" is read before it is made", program_.name(slot)));
      places.emplace_back(DevicePlacement::kHost, make_location(key, DevicePlacement::kHost));
      if (auto home = placement_.of_argument.find(key); home != placement_.of_argument.end() && kind == LocationKind::feed)
        location_on(slot, home->second);
    }
    for (const auto& [where, location] : places)
      if (where == device) return location;
    const LocationId target = make_location(key, device);
    if (kind != LocationKind::constant) {
      // Copies from the device that made the value. For a feed, DevicePlacement::of_argument may name the device.
      const bool at_home = placement_.of_argument.contains(key) && places.size() > 1;
      const auto [from, source] = places[at_home ? 1 : 0];
      const bool sends = from != DevicePlacement::kHost;
      const int queue = sends ? stream_of(from, Queue::copy_out) : stream_of(device, Queue::copy_in);
      add_step({.source = source, .target = target, .stream = queue}, {{source}, {target}});
    }
    where_[key].emplace_back(device, target);
    return target;
  }

  LocationId any_location(SlotId slot) {
    const auto& places = where_[key_of(slot)];
    return places.empty() ? location_on(slot, DevicePlacement::kHost) : places[0].second;
  }

  void wait_for_copy_to(LocationId location) {
    if (const StepId writer = history_[location].writer; writer != kNoStep && plan_.steps[writer].is_copy())
      plan_.steps[writer].host_waits = true;
  }

  int stream_of(int device, Queue queue) const {
    const int computing = std::max(1, options_.compute_streams);
    const int first = first_stream_[static_cast<size_t>(device)];
    return queue == Queue::compute ? first : first + computing + (queue == Queue::copy_in ? 0 : 1);
  }

  void add_kernel(InstructionId index) {
    const Instruction& instruction = program_.instructions()[index];
    const auto operands = program_.operands(instruction);
    const int device = placement_.of_instruction[index];
    const auto bodies = placement_.of_control_flow.find(index);
    const ControlFlowPlacement* const apart = bodies == placement_.of_control_flow.end() ? nullptr : &bodies->second;
    if (apart)
      for (size_t b = 0; b < apart->bodies.size(); ++b)
        plan_.bodies[index].push_back(StreamPlanner(*instruction.bodies[b], apart->bodies[b], num_devices_, options_).plan());
    const auto d = static_cast<size_t>(device);
    const bool at_once = d < options_.at_once.size() && options_.at_once[d];
    StreamPlan::Step step{.instruction = index, .host_waits = instruction.dynamic && !at_once};
    Access access;
    std::vector<LocationId> locations;
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == kNoSlot) {
        locations.push_back(kNoLocation);
      } else if (k < instruction.num_inputs) {
        const int on = apart ? apart->of_operand[k] : reads_on_host(instruction, k) ? DevicePlacement::kHost : device;
        // An instruction that reads only shapes needs no copy of the elements.
        const bool anywhere = on == ControlFlowPlacement::kAnywhere ||
                              (device == DevicePlacement::kHost && !apart && reads_only_shapes(*instruction.node->op));
        locations.push_back(anywhere ? any_location(operands[k]) : location_on(operands[k], on));
        access.reads.push_back(locations.back());
        // The host's part of a device kernel reads the operand when the kernel is issued, so the copy must have arrived by then.
        if (!apart && device != DevicePlacement::kHost && reads_on_host(instruction, k)) wait_for_copy_to(locations.back());
      } else if (is_view(instruction, operands, k)) {
        locations.push_back(location_on(operands[k], device));
        access.reads.push_back(locations.back());
      } else {
        locations.push_back(location_to_write(operands[k], apart ? apart->of_operand[k] : device));
        access.writes.push_back(locations.back());
      }
    }
    step.first_operand = static_cast<uint32_t>(plan_.operands.size());
    plan_.operands.insert(plan_.operands.end(), locations.begin(), locations.end());
    if (instruction.scratch_buffer != kNoBuffer) {
      step.scratch = plan_.locations.add({.device = device, .buffer = instruction.scratch_buffer});
      history_.emplace_back();
      access.writes.push_back(step.scratch);
    }
    step.stream = choose_stream(device, access);
    add_step(std::move(step), access);
  }

  // Returns true if the output is a view of an input, so that the kernel does not write it.
  bool is_view(const Instruction& instruction, std::span<const SlotId> operands, size_t k) const {
    for (const Alias& alias : instruction.node->op->alias) {
      if (alias.kind != Alias::Kind::view || alias.input >= instruction.num_inputs ||
          static_cast<size_t>(alias.output) + instruction.num_inputs != k)
        continue;
      const SlotId input = operands[static_cast<size_t>(alias.input)];
      if (input != kNoSlot && slot_of(operands[k]).root == slot_of(input).root) return true;
    }
    return false;
  }

  // Returns the location that an output is written to. If the output overwrites a value, and the device has that value, this is the value's
  // location. Copies on other devices become outdated.
  LocationId location_to_write(SlotId slot, int device) {
    const SlotId key = key_of(slot);
    auto& places = where_[key];
    LocationId location = kNoLocation;
    for (const auto& [where, found] : places)
      if (where == device) location = found;
    if (location == kNoLocation) location = make_location(key, device);
    places.assign(1, {device, location});
    return location;
  }

  std::vector<StepId> comes_after(const Access& access) const {
    std::vector<StepId> steps;
    for (LocationId location : access.reads)
      if (StepId writer = history_[location].writer; writer != kNoStep) steps.push_back(writer);
    for (LocationId location : access.writes) {
      const History& history = history_[location];
      if (history.writer != kNoStep) steps.push_back(history.writer);
      steps.insert(steps.end(), history.readers.begin(), history.readers.end());
    }
    std::sort(steps.begin(), steps.end());
    steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
    return steps;
  }

  // Chooses the stream whose last step the kernel depends on, so that a chain of kernels stays on one stream. Otherwise chooses the stream
  // with the fewest steps.
  int choose_stream(int device, const Access& access) const {
    const int first = stream_of(device, Queue::compute), count = std::max(1, options_.compute_streams);
    if (count == 1) return first;
    const std::vector<StepId> after = comes_after(access);
    int best = -1;
    for (int s = first; s < first + count; ++s)
      if (const StepId tail = tails_[static_cast<size_t>(s)]; tail != kNoStep && std::binary_search(after.begin(), after.end(), tail))
        if (best < 0 || tail > tails_[static_cast<size_t>(best)]) best = s;
    if (best >= 0) return best;
    for (int s = best = first; s < first + count; ++s)
      if (lengths_[static_cast<size_t>(s)] < lengths_[static_cast<size_t>(best)]) best = s;
    return best;
  }

  void add_step(StreamPlan::Step step, const Access& access) {
    const StepId index = plan_.steps.next_id();
    const auto stream = static_cast<size_t>(step.stream);
    const size_t num_streams = plan_.streams.size();
    std::vector<int32_t> clock(num_streams, -1);
    auto join = [&](StepId other) {
      const auto theirs = plan_.clock(other);
      for (size_t s = 0; s < num_streams; ++s) clock[s] = std::max(clock[s], theirs[s]);
    };
    if (tails_[stream] != kNoStep) join(tails_[stream]);
    std::vector<StepId> after = comes_after(access);
    auto stream_at = [&](StepId other) { return static_cast<size_t>(plan_.steps[other].stream); };
    std::erase_if(after, [&](StepId other) { return clock[stream_at(other)] >= plan_.position_[other]; });
    for (StepId other : after) {
      const bool implied = std::any_of(after.begin(), after.end(), [&](StepId third) { return plan_.happens_before(other, third); });
      if (!implied) step.waits.push_back(other);
    }
    for (StepId other : step.waits) {
      join(other);
      plan_.steps[other].records = true;
    }
    clock[stream] = lengths_[stream];
    plan_.clocks_.insert(plan_.clocks_.end(), clock.begin(), clock.end());
    plan_.position_.push_back(lengths_[stream]++);
    tails_[stream] = index;
    for (LocationId location : access.reads) touch(location, index), history_[location].readers.push_back(index);
    for (LocationId location : access.writes) touch(location, index), history_[location] = {index, {}};
    plan_.steps.push_back(std::move(step));
  }

  void touch(LocationId location, StepId step) {
    last_touch_.resize(plan_.locations.size(), kNoStep);
    StreamPlan::Location& found = plan_.locations[location];
    if (std::exchange(last_touch_[location], step) != step) ++found.num_steps;
    if (found.memory == Memory::planned && (found.uses.empty() || found.uses.back() != step)) found.uses.push_back(step);
  }

  // Groups successive kernels of a stream into bulks. Only the first step of a bulk waits for other steps, and other steps wait only for
  // its last one, so a bulk can be issued when its first step can.
  void make_bulks() {
    auto is_yield = [&](const StreamPlan::Step& step) { return !step.is_copy() && program_.instructions()[step.instruction].is_yield; };
    const auto is_dynamic = [&](const StreamPlan::Step& step) {
      return !step.is_copy() && !is_yield(step) && program_.instructions()[step.instruction].dynamic;
    };
    const bool data_dependent = std::any_of(plan_.steps.begin(), plan_.steps.end(), [&](const StreamPlan::Step& step) {
      return is_dynamic(step) || (step.is_copy() && step.host_waits);
    });
    const size_t cap = data_dependent ? 1 : std::max<size_t>(1, options_.max_bulk);
    std::vector<int32_t> open(plan_.streams.size(), -1);  // for each stream: the bulk that its next kernel may join; -1: none
    for (StepId i : plan_.steps.ids()) {
      const StreamPlan::Step& step = plan_.steps[i];
      int32_t& bulk = open[static_cast<size_t>(step.stream)];
      const bool joins =
          bulk >= 0 && !step.is_copy() && step.waits.empty() && !is_yield(step) && plan_.bulks[static_cast<size_t>(bulk)].size() < cap;
      if (!joins) {
        bulk = static_cast<int32_t>(plan_.bulks.size());
        plan_.bulks.emplace_back();
      }
      plan_.bulks[static_cast<size_t>(bulk)].push_back(i);
      if (step.records || step.is_copy()) bulk = -1;
      if (is_yield(step)) open.assign(open.size(), -1);  // later steps are issued after the Yield
    }
  }

  const Program& program_;
  const DevicePlacement& placement_;
  const int num_devices_;
  const StreamOptions options_;
  StreamPlan plan_;
  std::vector<int> first_stream_;                                    // first stream of each device
  std::vector<StepId> tails_;                                        // last step of each stream
  std::vector<int32_t> lengths_;                                     // number of steps of each stream
  IdVector<SlotId, std::vector<std::pair<int, LocationId>>> where_;  // by slot with its own bytes: (device, location) of its contents
  IdVector<LocationId, StepId> last_touch_;
  IdVector<LocationId, History> history_;
};

StreamPlan plan_streams(const Program& program, const DevicePlacement& placement, int num_devices, const StreamOptions& options) {
  return StreamPlanner(program, placement, num_devices, options).plan();
}

int StreamPlan::num_copies() const {
  return static_cast<int>(std::count_if(steps.begin(), steps.end(), [](const Step& step) { return step.is_copy(); }));
}

int StreamPlan::num_fences() const {
  int count = 0;
  for (const Step& step : steps) count += static_cast<int>(step.waits.size());
  return count;
}

std::string describe(const Program& program, const StreamPlan& plan, std::span<const std::string> device_names) {
  std::string out;
  auto place = [&](LocationId location) {
    const StreamPlan::Location& found = plan.locations[location];
    return fmt::format("%{} on {}", program.name(found.slot), device_names[static_cast<size_t>(found.device)]);
  };
  static constexpr const char* kQueues[] = {"compute", "copy-in", "copy-out"};
  for (StepId i : plan.steps.ids()) {
    const StreamPlan::Step& step = plan.steps[i];
    const StreamPlan::Stream& stream = plan.streams[static_cast<size_t>(step.stream)];
    out += fmt::format("{:4}  {} {} {}  ", index_of(i), device_names[static_cast<size_t>(stream.device)],
                       kQueues[static_cast<size_t>(stream.queue)], step.stream);
    if (step.is_copy()) {
      out += fmt::format("copy {} -> {}", place(step.source), place(step.target));
    } else {
      const Node& node = *program.instructions()[step.instruction].node;
      out += fmt::format("{} {}", node.op_type, node.name);
    }
    for (StepId wait : step.waits) out += fmt::format("  after {}", index_of(wait));
    out += "\n";
    const auto bodies = plan.bodies.find(step.instruction);
    for (size_t b = 0; bodies != plan.bodies.end() && b < bodies->second.size(); ++b) {
      const Instruction& instruction = program.instructions()[step.instruction];
      out += fmt::format("{} of {}:\n{}", instruction.node->bodies[b].attribute, instruction.node->name,
                         describe(*instruction.bodies[b], bodies->second[b], device_names));
    }
  }
  out += fmt::format("{} copies, {} fences, {} pieces of work\n", plan.num_copies(), plan.num_fences(), plan.bulks.size());
  return out;
}

}  // namespace treadle::exec
