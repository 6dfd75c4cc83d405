// Which values of a program lie in the device's memory, and which in the host's because the device, or the job's limit, has no room.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/device.h"
#include "exec/binding.h"
#include "exec/program.h"
#include "sharing/job_table.h"
#include "sharing/memory_watch.h"
#include "sharing/turn.h"

namespace treadle::exec {

class Residency;

/// A session's limit on a device's memory, of all of its programs together.
struct DeviceMemoryLimit {
  std::atomic<uint64_t> limit_bytes{0};  ///< 0: none
  std::atomic<uint64_t> used_bytes{0};
  std::mutex run;                    ///< one run at a time: what other programs hold is then idle
  std::mutex mutex;                  ///< of programs
  std::vector<Residency*> programs;  ///< that hold memory
};

/// For devices that reach the host's memory over a bus (Device::has_bus). A node's operands are brought into the device's memory before
/// it, if there is room, or room can be made by moving out values that are used later than they are; what stays out is read and written
/// over the bus. When every value is used next is known from the program, once for all budgets, so that a new limit holds from the next
/// node on, and what a smaller one moves out is what hurts least (Belady's rule). Values are the planner's buffers, constants, feeds and
/// held values. With a session's limit every node has all that it uses in the device's memory, or the run ends before it begins. Constants
/// that the next nodes use come over the bus while earlier nodes run, if the room for them is free anyway. Addresses do not change: the
/// device's address space spans both memories.
class Residency final : public sharing::MemoryWatch::Client {
 public:
  /// @param job  whose limit counts besides the device's own size; null: none.
  /// @param own  the session's limit; null: none. One of the two there must be.
  Residency(const Program& program, Device& device, sharing::JobState* job, std::shared_ptr<DeviceMemoryLimit> own);
  ~Residency() override;

  /// A run begins. The caller holds the program's lock: one run at a time.
  /// @throws Error(resource_exhausted) if the session's limit does not hold what the largest node uses, saying how much that is.
  void begin(const Binding& binding);
  /// A value outside of the arena has got its memory; it comes from the host (a feed, a constant) or is yet to be computed.
  void add(int32_t slot, size_t size_bytes, bool from_host);
  void before(size_t position);
  void after(size_t position);
  void end();

  /// The limit has changed: moves out at once if no run is under way; a run does it at its next node.
  void limit_changed() override;

 private:
  struct Unit {
    size_t size_bytes = 0;
    bool live = false;               // has memory
    bool resident = false;           // in the device's
    bool written = false;            // has contents
    bool on_host = false;            // the host has the same contents: moving out costs nothing
    bool lasting = false;            // a constant: stays from run to run
    std::shared_ptr<Event> arrival;  // of what comes over the bus while other nodes run; null: it is here
  };

  size_t unit_of(int32_t slot) const;
  int64_t next_use(size_t unit, size_t position) const;
  bool reserve(size_t size_bytes);
  void shrink_to_limit(size_t position);
  bool make_room(size_t unit, size_t position);
  void move_out(size_t unit);
  void drop(size_t unit);
  void transfer(size_t size_bytes);
  void await_arrival(Unit& unit);
  void fetch_ahead(size_t position);
  void take_in(size_t unit);
  void check_limit() const;
  bool evict_idle();
  bool is_over_limit() const;
  void count(std::atomic<uint64_t> sharing::JobSlot::*what, uint64_t change);  // of the job, if there is one
  void unreserve(size_t size_bytes);

  const Program& program_;
  Device& device_;
  std::unique_ptr<Stream> bus_;
  sharing::JobState* const job_;
  const std::shared_ptr<DeviceMemoryLimit> own_;
  std::unique_lock<std::mutex> turn_;  // of the session's runs
  const Binding* binding_ = nullptr;
  std::mutex mutex_;                                  // against limit_changed(), which comes from another thread
  std::vector<Unit> units_;                           // the planner's buffers, then root slots
  std::vector<std::vector<int32_t>> uses_;            // per unit: instructions, ascending
  std::vector<std::vector<int32_t>> of_instruction_;  // units
  size_t position_ = 0;
};

}  // namespace treadle::exec
