// Decides which values of a run lie in a device's own memory and which in the host's, when its memory, or a limit on it, is too small for
// all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "exec/memory/governor.h"
#include "exec/placed/device_memory.h"
#include "exec/placed/device_uses.h"
#include "exec/placed/placed_steps.h"
#include "exec/placed/resident_units.h"
#include "exec/run/run_control.h"

namespace treadle::exec {

/// Works for devices that reach the host's memory over a bus (Device::bus). The plan gives each value a fixed address. Before work is
/// enqueued, Bus::reach translates it to the address where the value is now. A Residency may serve several runs, one after the other.
///
/// - Before a step, the values that it uses are brought into the device's memory. If a value does not fit, other values move to the host:
///   first the one whose next use is the farthest away. Values that are used before this value's next use are not moved. If the value still
///   does not fit, the step uses it in the host's memory, over the bus.
/// - The plan tells when each value is used next, independently of the limit. So a changed limit takes effect at the next step. Evicting
///   the value whose next use is the farthest away costs the fewest moves (Belady's rule).
/// - If the session has a limit, every step needs all its values in the device's memory. A run does not begin if one of its steps needs
///   more than the limit.
/// - Moves run beside the steps under way. A step waits on its device for the values that it uses, and a move for the steps that have used
///   the value. The host waits only if a step needs memory that steps or moves under way still use (StepsUnderWay has the one other wait).
/// - Constants for the next steps are fetched while earlier steps run, if there is free room.
/// - If the job limits the host's memory, values in it are written to a file, and read back before the step that uses them.
/// - Bodies of If, Loop and Scan have runs with a Residency of their own. While the run of a body is under way, values of the surrounding
///   run may be evicted, except those that its present step uses.
///
/// The governor's mutex guards all Residencies that share limits. A run that holds the mutex may move its own values, and values of runs
/// that are idle or wait for a body.
class Residency final : MemoryKeeper {
 public:
  /// @param steps, streams  must outlive this object.
  Residency(const PlacedSteps& steps, const RunStreams& streams, std::shared_ptr<DeviceMemory> memory);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  /// Called at the start of a run.
  /// @param planned  for each location that is planned into an arena, its address; must stay valid until end().
  /// @throws Error(resource_exhausted) if the largest step needs more than the session's limit; the message says how many bytes it needs.
  void begin(const Binding& binding, IdSpan<LocationId, std::byte* const> planned);
  void end();
  /// Registers the memory of a constant, or of a location whose memory the run has allocated outside of the arenas (held). Does nothing for
  /// devices without a bus.
  /// @param from_host  true if the memory is a copy of a feed or constant that the host still has
  void add(LocationId location, std::byte* data, size_t size_bytes, bool from_host);
  /// Called before each step is issued, though earlier ones are under way. Lets the step's stream wait for the step's values.
  /// @throws Error(resource_exhausted) if the limits leave no room for the step's values, Error(io_error) if a file cannot be written.
  void before(StepId step);
  /// Called when the step has been issued.
  void after(StepId step);
  /// Called when the host has waited for all steps.
  void note_all_done();
  /// Like note_all_done(), and waits for the moves, too. @throws the error of a move
  void settle();
  /// Returns how often the host has waited for memory that work under way used.
  int64_t num_waits() const { return num_waits_; }

  /// Marks the run as active while this object lives. No other run may evict the values of an active run. If the session has a limit, only
  /// one of its runs (with the runs of its bodies) is active at a time; the constructor waits for its turn.
  class GoingOn {
   public:
    /// @param residency  null if no memory limit applies to the run. @throws Error(cancelled or timed_out)
    GoingOn(Residency* residency, const RunControl& control);
    ~GoingOn();
    GoingOn(const GoingOn&) = delete;
    GoingOn& operator=(const GoingOn&) = delete;

   private:
    std::optional<Governor::Exclusive> of_session_;
    Residency* const residency_;
  };

  /// Exists while a body of the run's present step runs. In this time, the run's values may be evicted, except those that the step uses.
  class BodyUnderWay {
   public:
    /// @param around  the Residency of the surrounding run; null if no memory limit applies to that run
    explicit BodyUnderWay(Residency* around);
    ~BodyUnderWay();
    BodyUnderWay(const BodyUnderWay&) = delete;
    BodyUnderWay& operator=(const BodyUnderWay&) = delete;

   private:
    Residency* const around_;
  };

 private:
  using Place = ResidentUnit::Place;
  struct OnDevice {
    OnDevice(const PlacedSteps& steps, int device, DeviceMemory& memory, StepsUnderWay& under_way)
        : uses(steps, device), units(steps.device(device), memory, uses, under_way) {}
    const DeviceUses uses;
    ResidentUnits units;
    size_t position = 0;  // position of the last step that was issued and uses the device
  };
  struct Guard;
  struct Choice;
  struct Shortage;

  OnDevice* on(int device) const { return devices_[static_cast<size_t>(device)].get(); }
  template <typename Visit>
  void for_devices(Visit&& visit) const;
  template <typename Visit>
  void for_devices_of(const StreamPlan::Step& step, Visit&& visit) const;
  void set_going_on(bool on);
  void settle_all();
  // Making room in a device's memory:
  int64_t next_use(const OnDevice& on, UnitId unit, size_t position) const;
  bool let_one_go(OnDevice& on, const Choice& choice);
  bool make_room(OnDevice& on, const Shortage& shortage, const Choice& choice);
  bool awaits_leaving(const OnDevice& on, const Shortage& shortage, Place from, uint64_t least_bytes);
  bool give_way(const MemoryAccount& full, const std::function<bool()>& enough) override;
  void check_limit(const OnDevice& on) const;
  void check_room(const OnDevice& on) const;
  // Bringing in a step's values:
  bool reads_in_place(const StreamPlan::Step& step) const;
  bool prepare(StepId step);
  bool prepare(OnDevice& on, bool in_place);
  bool bring(OnDevice& on, UnitId unit);
  void note_move(const OnDevice& on);
  void appear(OnDevice& on, UnitId unit);
  void fetch_ahead(OnDevice& on);

  const PlacedSteps& steps_;
  const RunStreams& streams_;
  const std::shared_ptr<DeviceMemory> memory_;
  StepsUnderWay under_way_;
  std::vector<std::unique_ptr<OnDevice>> devices_;  // null for the host and for devices without a bus
  const Binding* binding_ = nullptr;                // the binding of the run; null except between begin() and end()
  IdSpan<LocationId, std::byte* const> planned_;
  std::shared_ptr<Event> awaited_;  // the host has to wait for it before the present step can get its memory; null: nothing
  size_t events_until_ = 0;         // each step before this position has an event of its own
  int64_t num_waits_ = 0;
  bool goes_on_ = false;
  int bodies_under_way_ = 0;
};

}  // namespace treadle::exec
