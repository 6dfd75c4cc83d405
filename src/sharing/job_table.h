// The job table: one page of memory, mapped by all processes of a user that have jobs. All its fields are atomic; there is no lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "sharing/node_hint.h"
#include "treadle/sharing.h"

namespace treadle::sharing {

inline constexpr int kMaxJobs = 64;             // limit of the jobs, because each has one bit in Page::guaranteed_running
inline constexpr uint32_t kFullShare = 10'000;  // shares are in units of 0.01 %
inline constexpr size_t kNameBytes = 48;        // size including the terminating zero

/// Says what threads of a job must do before each node. Each duty is one bit in the low byte of JobSlot::word; the other bits count
/// changes.
enum Duty : uint32_t {
  kThrottled = 1,  ///< sleep, because the share is below 100 %
  kSuspended = 2,
  kGivesWay = 4,   ///< yield to guaranteed jobs
  kPublishes = 8,  ///< publish which resource limits the current node, for opportunistic jobs that may run beside it
  kAnyDuty = 0xFF,
  kOneChange = 0x100,
};

/// Says which nodes of opportunistic jobs may run during a run of a guaranteed job.
enum class Beside : uint32_t {
  none = 0,           ///< none: opportunistic runs give way
  compute_bound = 1,  ///< nodes that are not memory-bound
  opposite = 2,       ///< nodes that another resource limits than the guaranteed job's node (Orion's rule)
  any = 3,            ///< all nodes: only shares limit them
};

enum class SlotState : uint32_t { free = 0, live = 1 };

struct JobSlot {
  // Duties of the job's threads (enum Duty), which read this word before every node.
  alignas(64) std::atomic<uint32_t> word{0};
  std::atomic<SlotState> state{SlotState::free};
  // Requested settings of the job.
  std::atomic<uint32_t> job_class{0}, share{kFullShare}, granted{kFullShare}, suspended{0}, publishes{0};
  std::atomic<uint32_t> memory_changes{0};
  std::atomic<uint64_t> memory_limit{0}, host_limit{0};
  // A profile requested by another process (session/attach.h): runs that begin before `profile_until_ns` are recorded.
  std::atomic<uint64_t> profile_until_ns{0}, profile_request{0};
  // Time until which a process has reserved the request; only one process at a time requests a profile.
  std::atomic<uint64_t> profile_taken_until_ns{0};
  // Number of runs in progress.
  alignas(64) std::atomic<uint32_t> running{0};
  std::atomic<uint32_t> active{0};  // threads of these runs that do not wait for their share or turn
  std::atomic<int32_t> threads{0};
  std::atomic<int32_t> cpu{-1};  // CPU on which the last run began
  // The job writes these members.
  alignas(64) std::atomic<uint64_t> runs{0};
  std::atomic<uint64_t> run_ns{0}, idle_ns{0}, gave_way_ns{0}, last_step_ns{0}, average_step_ns{0};
  std::atomic<uint64_t> device_bytes{0}, host_bytes{0}, disk_bytes{0}, peak_bytes{0}, moved_bytes{0}, moves{0}, moving_ns{0};
  // The owner writes these members before the slot becomes live.
  alignas(64) std::atomic<uint64_t> id{0};
  std::atomic<int64_t> pid{0};
  std::atomic<uint64_t> owner{0};  // hash of the process's pid, start time and PID namespace
  char name[kNameBytes]{};

  double share_percent() const { return share.load(std::memory_order_relaxed) / 100.0; }
};

struct Page {
  char magic[8];
  alignas(64) std::atomic<uint64_t> guaranteed_running;  // one bit per slot
  std::atomic<uint64_t> guaranteed_ended_ns;             // time at which the last run of a guaranteed job ended
  alignas(64) std::atomic<Beside> beside;
  std::atomic<uint32_t> guaranteed_bound;  // the Bound (limiting resource) of the node that a guaranteed job began last
  std::atomic<uint64_t> max_beside_ns;     // nodes that take longer never run beside a guaranteed job; 0: no limit
  std::atomic<uint64_t> coordinator_beat_ns;
  std::atomic<int64_t> coordinator_pid;
  std::atomic<uint64_t> last_id, last_profile;
  JobSlot slots[kMaxJobs];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<SlotState>::is_always_lock_free);

/// A coordinator's settings are valid for this time after it last wrote Page::coordinator_beat_ns.
inline constexpr uint64_t kCoordinatorTimeoutNs = 2'000'000'000;

/// Returns the time of CLOCK_MONOTONIC, which is the same in all processes of a machine.
uint64_t now_ns() noexcept;

class JobTable {
 public:
  /// Returns the process's table; maps the page at the first call. If the folder cannot be used, the table is in private memory, visible
  /// only to this process, and a warning gives the reason.
  static JobTable& get();

  Page& page() { return *page_; }
  bool shared() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }

  /// Claims a free slot, which is reset and locked, but not live yet. @throws Error(resource_exhausted)
  int claim();
  void publish(int slot) { page_->slots[slot].state.store(SlotState::live, std::memory_order_release); }
  void give_back(int slot);
  /// Frees slots of dead processes. Needs some system calls.
  void sweep();
  /// Returns the live slot with this id; -1 if there is none.
  int find(uint64_t id);

  /// Makes this process the coordinator. Returns false if another one is.
  bool lock_coordinator();
  void unlock_coordinator();
  /// Returns the coordinator's pid in this process's namespace; 0: there is no coordinator.
  int64_t coordinator_pid();

 private:
  JobTable();
  bool map_shared(std::string* why);
  bool lock_byte(int byte);
  void unlock_byte(int byte);
  void clear(int slot);
  void forget_parents_locks();

  Page* page_ = nullptr;
  int fd_ = -1;
  std::string path_;
};

/// Computes JobSlot::word from the job's settings, and wakes threads that sleep on it. Call it after every change.
void refresh(JobSlot& slot);
/// Clears the grants of a coordinator that has ended, and calls refresh() for the slots that had any.
void end_grants(Page& page);

/// Creates, if necessary, the folder that a user's jobs share. It belongs to this user, and no other user can read it.
/// @throws Error(io_error)
void make_sharing_folder(const std::string& folder);

JobStatus status_of(const JobSlot& slot);
/// Applies a change to a slot. @throws Error(invalid_argument)
void apply(Page& page, int slot, const JobChange& change);
/// Must be called when the last guaranteed run of the slot's job has ended.
void end_guaranteed(Page& page, int slot);
uint32_t share_from_percent(double percent);

}  // namespace treadle::sharing
