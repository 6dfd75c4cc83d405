// Which values of a program lie in the device's memory, and which in the host's because the device, or the job's limit, has no room.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "exec/binding.h"
#include "exec/device_executor.h"
#include "exec/program.h"
#include "memory/spill_file.h"
#include "sharing/job_table.h"
#include "sharing/memory_watch.h"
#include "sharing/turn.h"

namespace treadle::exec {

class Residency;

/// A session's limit on a device's memory, of all of its programs together.
struct DeviceMemoryLimit {
  std::atomic<uint64_t> limit_bytes{0};  ///< 0: none
  std::atomic<uint64_t> used_bytes{0};
  RunTurns run;                      ///< one run at a time: what other programs hold is then idle
  std::mutex mutex;                  ///< of programs
  std::vector<Residency*> programs;  ///< that hold memory
};

/// For devices that reach the host's memory over a bus (Device::has_bus). A node's operands are brought into the device's memory before
/// it, if there is room, or room can be made by moving out values that are used later than they are; what stays out is read and written
/// over the bus. When every value is used next is known from the program, once for all budgets, so that a new limit holds from the next
/// node on, and what a smaller one moves out is what hurts least (Belady's rule). Values are the planner's buffers, constants, feeds and
/// held values. With a session's limit every node has all that it uses in the device's memory, or the run ends before it begins. Constants
/// that the next nodes use come over the bus while earlier nodes run, if the room for them is free anyway. Addresses do not change: the
/// device's address space spans both memories. Where the job has a limit for the host's memory, what is used last goes from there to a
/// file, and comes back before its node.
class Residency final : public sharing::MemoryWatch::Client {
 public:
  /// @param job  whose limit counts besides the device's own size; null: none.
  /// @param own  the session's limit; null: none. One of the two there must be.
  /// @param spill_folder  empty: the system's for temporary files.
  Residency(const Program& program, Device& device, sharing::JobState* job, std::shared_ptr<DeviceMemoryLimit> own,
            std::string spill_folder);
  ~Residency() override;

  /// A run begins. The caller holds the program's lock: one run at a time.
  /// @param arena  where the planned values are.
  /// @throws Error(resource_exhausted) if the session's limit does not hold what the largest node uses, saying how much that is.
  /// @throws Error(cancelled or timed_out) while other runs of the session have their turn.
  void begin(const Binding& binding, std::byte* arena, const RunControl& control);
  /// A value outside of the arena has got its memory; it comes from the host (a feed, a constant) or is yet to be computed.
  void add(int32_t slot, std::byte* data, size_t size_bytes, bool from_host);
  /// True if before() may read or write values: then none of the run's copies may be under way.
  bool may_spill() const { return host_limit() != UINT64_MAX || (job_ && job_->slot().disk_bytes.load(std::memory_order_relaxed) != 0); }
  /// @throws Error(resource_exhausted) if both limits leave no room for what the node uses, Error(io_error) if a file cannot be written.
  void before(size_t position);
  /// The host is about to read an output.
  void before_reading(int32_t slot);
  void after(size_t position);
  void end();

  /// A limit has changed: moves out at once if no run is under way; a run does it at its next node.
  void limit_changed(bool may_wait) override;
  /// The same, where nobody runs. False, and nothing done, while another thread is at it.
  bool try_keep_to_limit();

 private:
  struct Unit {
    size_t size_bytes = 0;
    bool live = false;      // has memory
    bool resident = false;  // in the device's
    bool written = false;   // has contents
    bool on_host = false;   // the host has the same contents: moving out costs nothing
    bool lasting = false;   // a constant: stays from run to run
    bool on_disk = false;   // in the file only
    bool in_file = false;   // the file has the same contents
    std::byte* data = nullptr;
    size_t file_offset = 0;
    std::shared_ptr<Event> arrival;  // of what comes over the bus while other nodes run; null: it is here
  };

  size_t unit_of(int32_t slot) const;
  int64_t next_use(size_t unit, size_t position) const;
  bool reserve(size_t size_bytes);
  void shrink_to_limit(size_t position);
  void keep_to_limit();  // with the mutex
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
  uint64_t host_limit() const;
  bool is_output(size_t unit) const;
  bool spill_for(size_t position, bool node_is_next);
  void spill(size_t unit);
  void read_back(size_t unit);
  void check_room(size_t position) const;
  template <typename Piece>
  void exchange(size_t unit, Piece&& piece);

  const Program& program_;
  Device& device_;
  std::unique_ptr<Stream> bus_;
  sharing::JobState* const job_;
  const std::shared_ptr<DeviceMemoryLimit> own_;
  std::optional<RunTurns::Turn> turn_;  // of the session's runs
  const Binding* binding_ = nullptr;
  std::mutex mutex_;                                  // against limit_changed(), which comes from another thread
  std::vector<Unit> units_;                           // the planner's buffers, then root slots
  std::vector<std::vector<int32_t>> uses_;            // per unit: instructions, ascending
  std::vector<std::vector<int32_t>> of_instruction_;  // units
  size_t position_ = 0;
  std::byte* arena_ = nullptr;
  // Constants have a file of their own: their places in it last.
  struct File {
    std::unique_ptr<memory::SpillFile> file;
    size_t end = 0;
  };
  File of_run_, of_constants_;
  const std::string spill_folder_;
  std::vector<std::byte> bounce_;
};

}  // namespace treadle::exec
