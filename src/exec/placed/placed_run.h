// A run over devices: everything is issued ahead, to all streams, and the host waits at the end, at a Yield, and where extents are data.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "exec/placed/placed_program.h"
#include "exec/plan/plans.h"
#include "exec/run/executor.h"
#include "exec/run/feed_binder.h"
#include "exec/run/output_store.h"
#include "exec/run/run_state.h"
#include "graph/evaluate.h"
#include "memory/planner.h"

namespace treadle::exec {

/// Has streams, events and arenas of its own, so that several runs of a program may be under way.
class PlacedRun final : public Run {
 public:
  explicit PlacedRun(PlacedProgram& owner);
  ~PlacedRun() override;

  void start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control,
             std::span<const OutputMemory> memory) override;
  void set_cache(std::shared_ptr<ValueCache> cache) override { cache_ = std::move(cache); }
  void set_recorder(const RunControl& of) override { control_.set_recorder(of); }
  void feed(size_t input, const Datum& value) override;
  void move_feed(size_t input, const Datum& value) override;
  bool has_output(size_t k) const override;
  Datum output(size_t k) const override { return outputs_.output(k); }
  Datum take_output(size_t k) override;
  /// Steps are kernels and copies, in the order in which they are issued. All devices have reached where it stops.
  bool advance(size_t steps = SIZE_MAX) override;
  size_t steps_left() const override;
  size_t steps_through(InstructionId instruction) const override;
  bool finished() const override { return next_ == order_.size(); }
  const Instruction* yield() const override { return !finished() && is_yield(next_) ? &instruction_of(step(order_[next_])) : nullptr; }
  std::vector<Datum> yielded() override;
  void resume(std::span<const Datum> values) override;
  void take_outputs(std::span<Datum> outputs) override;
  void clear() noexcept override;
  void trim() noexcept override;
  const RunControl& control() const override { return control_; }

  /// Bytes of the arena of a device.
  size_t arena_bytes(int device) const {
    const Arena& arena = arenas_[static_cast<size_t>(device)];
    return arena.storage ? arena.storage->size_bytes() : 0;
  }
  Stream& stream(int i) const { return *streams_[static_cast<size_t>(i)]; }
  std::span<const std::unique_ptr<Stream>> streams() const { return streams_; }

 private:
  // A location's memory in this run.
  struct Place {
    Datum datum;             // held: the root's; undefined until it is made
    bool tracked = false;    // the device knows the memory
    int32_t steps_left = 0;  // that touch it
    std::shared_ptr<const void> watch;
  };
  struct Arena {
    std::vector<LocationId> locations;   // planned ones of the device
    std::vector<size_t> sizes, offsets;  // of those, in that order; sizes are those that the offsets were made for
    std::shared_ptr<Storage> storage;
    bool planned_before = false;
  };

  const Binding& binding() const { return state_.binding(); }
  const StreamPlan::Step& step(StepId id) const { return plan_.steps[id]; }
  const StreamPlan::Location& location(LocationId id) const { return plan_.locations[id]; }
  const Instruction& instruction_of(const StreamPlan::Step& step) const { return program_.instructions()[step.instruction]; }
  const Slot& slot_info(SlotId slot) const { return program_.slots()[slot]; }
  Device& device(int i) const { return *owner_.devices()[static_cast<size_t>(i)]; }
  int device_of(const StreamPlan::Step& step) const { return plan_.streams[static_cast<size_t>(step.stream)].device; }
  std::span<const LocationId> locations_of(const StreamPlan::Step& step) const;
  bool is_yield(size_t position) const {
    const StreamPlan::Step& at = step(order_[position]);
    return at.instruction != kNoInstruction && instruction_of(at).is_yield;
  }
  bool waits_for_feed(const StreamPlan::Step& step) const;
  void find_starved();
  Residency* residency(int device) const { return residencies_.empty() ? nullptr : residencies_[static_cast<size_t>(device)].get(); }
  template <typename Visit>
  void for_residencies_of(const StreamPlan::Step& step, Visit&& visit) const;

  // Values that stay on devices between runs (resident_values.cpp)
  Datum taken_feed(size_t input, const Datum& feed);
  void choose_staying(std::span<const Datum> bound, std::vector<OutputMemory>& memory);
  Tensor memory_of_staying(LocationId at, int maker, DType dtype, const Shape& shape);
  static Datum from_device(Datum value);

  // Memory (placed_memory.cpp)
  void begin_on_host(std::span<const Datum> feeds, std::span<const Datum> bound, std::span<const OutputMemory> memory);
  void find_memory();
  void become_resident();
  std::vector<size_t> sizes_in(const Arena& arena, IdSpan<BufferId, const size_t> buffer_sizes) const;
  memory::ArenaPlan plan_arena(const Arena& arena, std::span<const size_t> sizes) const;
  void place();
  /// Of the session, if it has one of its own and nothing is moved between memories.
  Allocator* allocator() const;
  void renew_arenas();
  std::vector<std::span<std::byte>> newly_used(const StreamPlan::Step& step) const;
  void verify() const;
  std::shared_ptr<Storage> allocate_bytes(int where, size_t size_bytes);
  Tensor allocate(int where, DType dtype, const Shape& shape);
  bool lies_on(const Tensor& tensor, int where) const;
  void make_outputs(const StreamPlan::Step& step);
  void make_place(LocationId at, DType dtype, const Shape& shape);
  void set_place(LocationId at, Datum datum, bool tracked, bool from_host);
  Datum value_at(LocationId at, SlotId slot);
  void hold(LocationId at, Datum made);
  Datum on_host(LocationId at, SlotId slot);
  void issue_copy(const StreamPlan::Step& copy, Stream& queue);
  void let_go(StepId s, Stream& queue);
  bool may_be_in_use(const StreamPlan::Location& location, StepId step) const;
  std::string describe_memory(const Instruction* failed) const;

  // Steps (placed_run.cpp)
  bool goes_one_by_one(const sharing::Turn& turn) const;
  [[noreturn]] void rethrow_on_device(const StreamPlan::Step& step);
  void issue_alone(sharing::Turn& turn, StepId s);
  void issue(std::span<const StepId> bulk);
  void record_launches(std::span<const StepId> bulk, uint64_t since) const;
  void issue_cached(const StreamPlan::Step& step, const Datum& value, Stream& queue);
  Datum* cached(const StreamPlan::Step& step);
  template <typename Body>
  Stream::Work guarded(const Instruction& instruction, int where, Body body);
  Stream::Work static_work(const StreamPlan::Step& step, Stream& queue);
  Stream::Work dynamic_work(const StreamPlan::Step& step, Stream& queue);
  void take_up(const StreamPlan::Step& step);
  int copy_in_of(int where) const;
  void declare(Stream& on, LocationId at, const Datum& datum, Access access, const std::string& name);
  static void declare(Stream& on, const void* data, size_t size_bytes, Access access, const std::string& name);
  void watch(int where, const Tensor& tensor);
  void wait_for_all() noexcept;
  void fail(std::exception_ptr error, const Instruction* failed = nullptr) noexcept;
  void rethrow();

  PlacedProgram& owner_;
  const Program& program_;
  const StreamPlan& plan_;
  RunControl control_;
  NodeCounters* counters_ = nullptr;  // null until a run counts
  RunState state_;                    // the host's view: feeds, binding, outputs
  FeedBinder binder_;
  OutputStore outputs_;
  std::vector<StepId> order_;      // of the steps, as they are issued
  std::vector<size_t> bulk_ends_;  // per position: where its bulk ends
  size_t next_ = 0;                // position
  size_t starved_ = SIZE_MAX;      // the first position that reads an input which is still to be fed
  bool is_told_ = false;           // advance() has come to it and said so: to ask again is an error
  Evaluator evaluator_;
  std::shared_ptr<ValueCache> cache_;

  std::vector<std::unique_ptr<Stream>> streams_;
  IdVector<StepId, std::shared_ptr<Event>> events_;      // null: nobody waits for it
  std::vector<Arena> arenas_;                            // per device
  IdVector<LocationId, std::byte*> planned_;             // where each is
  uint64_t generation_ = 0;                              // of the binding that the arenas are for
  std::shared_ptr<DeviceConstants> constants_;           // shared by runs that keep to no limit
  std::vector<std::unique_ptr<Residency>> residencies_;  // per device with a bus; empty: the run has no limit to keep

  IdVector<LocationId, Place> places_;
  std::unordered_map<SlotId, Datum> feeds_;
  std::vector<std::shared_ptr<const void>> watches_;  // of memory that the caller has on devices
  std::unordered_map<LocationId, Tensor> staying_;    // by the host's location that a copy would make; undefined: in new memory
  std::unordered_map<const Storage*, std::pair<std::weak_ptr<Storage>, int>> blocks_;  // of devices, that this run has made
  std::vector<Datum> made_;                                                            // by the instruction that the host waits for
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
  const Instruction* failed_at_ = nullptr;  // whose error it is; null: not an instruction's
};

}  // namespace treadle::exec
