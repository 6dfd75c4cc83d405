// Which values of a run lie in the device's memory, and which in the host's because the device, or a limit, has no room.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "exec/memory/governor.h"
#include "exec/memory/job_memory.h"
#include "exec/plan/binding.h"
#include "exec/plan/stream_plan.h"
#include "memory/spill_file.h"

namespace treadle::exec {

/// Of a session: what its programs hold of its devices' memory.
struct DeviceMemory {
  /// @param of_job     above it; null: none.
  /// @param limited    runs keep to a limit of the session: every step has all that it uses in its device's memory.
  /// @param in_folder  for files; empty: the system's for temporary ones.
  explicit DeviceMemory(std::shared_ptr<JobMemory> of_job = nullptr, bool limited = false, std::string in_folder = {});
  Governor& governor() { return job ? job->governor() : own_; }
  /// On devices; 0: none.
  void set_limit(size_t limit_bytes);

  const std::shared_ptr<JobMemory> job;
  const bool has_limit;
  const std::string spill_folder;
  MemoryAccount account;

 private:
  Governor own_;
};

/// For devices that reach the host's memory over a bus (Device::bus); of one run, or of several one after the other. What a step uses
/// is brought into the device's memory before it, if there is room, or room can be made by moving out values that are used later than they
/// are; what stays out is read and written over the bus. When every value is used next is known from the plan, once for all budgets, so
/// that a new limit holds from the next step on, and what a smaller one moves out is what hurts least (Belady's rule). Values are the
/// plan's locations on the device and what kernels have packed for it. With a session's limit every step has all that it uses in the
/// device's memory, or the run ends before it begins. Constants that the next steps use come over the bus while earlier ones run, if the
/// room for them is free anyway. Addresses do not change: the device's address space spans both memories. Where the job has a limit for the
/// host's memory, what is used last goes from there to a file, and comes back before its step.
/// The governor's mutex guards all Residencies that share limits: a run has its own values and those of idle ones moved under it.
class Residency final : MemoryKeeper {
 public:
  /// @param plan    of `program`; must outlive this object, as the program.
  /// @param device  of the plan's devices, the one whose memory this is about: `on`.
  /// @param of_run  those of the same run on all devices, with null for some, when it goes on.
  Residency(const Program& program, const StreamPlan& plan, int device, Device& on, std::shared_ptr<DeviceMemory> memory,
            const std::vector<std::unique_ptr<Residency>>& of_run);
  ~Residency();

  /// A run begins.
  /// @param planned  where each location lies, if it is planned. Stays valid until the end.
  /// @throws Error(resource_exhausted) if the session's limit does not hold what the largest step uses, saying how much that is.
  void begin(const Binding& binding, IdSpan<LocationId, std::byte* const> planned);
  /// The run goes on, or stops for a while: then others may have its memory moved out.
  void go_on(bool runs);
  /// A location that is held, or a constant's, has got its memory. @param from_host  it has the elements that the host has: of a feed, or a
  /// constant.
  void add(LocationId location, std::byte* data, size_t size_bytes, bool from_host);
  /// @throws Error(resource_exhausted) if both limits leave no room for what the step uses, Error(io_error) if a file cannot be written.
  void before(StepId step);
  void after(StepId step);
  void end();

 private:
  enum class UnitId : int32_t {};  // the plan's locations, by their numbers, then what is packed
  enum class Place : uint8_t { nowhere, device, host, file };
  struct Unit {
    size_t size_bytes = 0;
    Place place = Place::nowhere;
    bool written = false;  // has contents
    bool on_host = false;  // the host has the same contents: moving out costs nothing
    bool lasting = false;  // a constant: stays from run to run
    bool in_file = false;  // the file has the same contents
    std::byte* data = nullptr;
    size_t file_offset = 0;
    std::shared_ptr<Event> arrival;  // of what comes over the bus while other nodes run; null: it is here
  };
  struct Guard;

  size_t size_of(UnitId unit) const;  // as far as it is known before the run
  int64_t next_use(UnitId unit, size_t position) const;
  bool is_used_at(size_t position, UnitId unit) const;
  void check_limit() const;
  void check_room(size_t position) const;
  // Who lets go of what.
  bool reserve(size_t size_bytes);
  void unreserve(size_t size_bytes);
  bool give_way(const MemoryAccount& full, const std::function<bool()>& enough) override;
  struct Choice;
  bool let_one_go(const Choice& choice);
  bool make_room(const MemoryAccount* full, const std::function<bool()>& enough, const Choice& choice);
  bool keep_host_limit(size_t position);
  // How it moves.
  void bring(UnitId unit, size_t position);
  void fetch_ahead(size_t position);
  void await_arrival(Unit& unit);
  void move_out(UnitId unit);
  void spill(UnitId unit);
  void read_back(UnitId unit);
  void drop(UnitId unit);
  void put(UnitId unit, Place place);
  MemoryAccount* account_of(UnitId unit, Place place) const;
  Bus& bus() const { return *device_.bus(); }
  void move(const Unit& unit, Bus::Move where);
  void use_over_bus(size_t size_bytes);
  void count_move(size_t size_bytes, uint64_t since_ns) const;
  static UnitId unit_of(LocationId location) { return UnitId{static_cast<int32_t>(location)}; }
  const StreamPlan::Location& location(UnitId unit) const { return plan_.locations[id_at<LocationId>(index_of(unit))]; }
  bool is_packed(UnitId unit) const { return index_of(unit) >= plan_.locations.size(); }
  IdRange<UnitId> packed_units() const { return {id_at<UnitId>(plan_.locations.size()), units_.next_id()}; }
  template <typename Piece>
  void exchange(UnitId unit, Piece&& piece);

  const Program& program_;
  const StreamPlan& plan_;
  Device& device_;
  std::unique_ptr<Stream> transfers_;
  const std::shared_ptr<DeviceMemory> memory_;
  const std::vector<std::unique_ptr<Residency>>& siblings_;
  const Binding* binding_ = nullptr;  // of the run, also while it stops
  IdSpan<LocationId, std::byte* const> planned_;
  bool runs_ = false;
  std::vector<const PackedState*> packed_;                        // for instructions on the device, each once
  std::vector<std::pair<size_t, const Instruction*>> versioned_;  // those of them that each version of the parameters has anew
  IdVector<UnitId, Unit> units_;
  // Positions are steps in the order in which they are issued.
  struct Position {
    StepId step = kNoStep;
    std::vector<UnitId> units;  // that it uses on the device, ascending
  };
  std::vector<Position> at_;
  IdVector<StepId, size_t> position_;
  IdVector<UnitId, std::vector<int32_t>> uses_;  // positions, ascending
  size_t at_position_ = 0;
  // Constants have a file of their own: their places in it last.
  struct File {
    std::unique_ptr<memory::SpillFile> file;
    size_t end = 0;
  };
  File of_run_, of_constants_;
  std::vector<std::byte> bounce_;
};

}  // namespace treadle::exec
