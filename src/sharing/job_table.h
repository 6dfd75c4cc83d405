// The job table: one page of memory that all processes of a user with jobs map. Everything in it is atomic; nobody locks it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "sharing/node_hint.h"
#include "treadle/sharing.h"

namespace treadle::sharing {

inline constexpr int kMaxJobs = 64;             // one bit each in Page::guaranteed_running
inline constexpr uint32_t kFullShare = 10'000;  // shares are in hundredths of a percent
inline constexpr size_t kNameBytes = 48;        // with the terminator

/// What a job has to do before a node: the low byte of JobSlot::word. The rest of the word counts the changes.
enum Duty : uint32_t {
  kThrottled = 1,  ///< the share is below 100 %
  kSuspended = 2,
  kGivesWay = 4,   ///< to guaranteed jobs
  kPublishes = 8,  ///< says what kind of node it runs, for opportunistic jobs that may run beside it
  kAnyDuty = 0xFF,
  kOneChange = 0x100,
};

/// Which nodes of opportunistic jobs may run while a guaranteed job has a run under way.
enum class Beside : uint32_t {
  none = 0,           ///< none: they give way
  compute_bound = 1,  ///< those that the memory does not bound
  opposite = 2,       ///< those with another bound than the guaranteed job's node (Orion's rule)
  any = 3,            ///< all: only shares hold them back
};

enum class SlotState : uint32_t { free = 0, live = 1 };

struct JobSlot {
  // What every node reads.
  alignas(64) std::atomic<uint32_t> word{0};
  std::atomic<SlotState> state{SlotState::free};
  // What is asked of the job.
  std::atomic<uint32_t> job_class{0}, share{kFullShare}, granted{kFullShare}, suspended{0}, publishes{0};
  std::atomic<uint32_t> memory_changes{0};
  std::atomic<uint64_t> memory_limit{0}, host_limit{0};
  // A profile that another process asks for (session/attach.h). Runs that begin before `until` are to be recorded.
  std::atomic<uint64_t> profile_until_ns{0}, profile_request{0};
  std::atomic<uint64_t> profile_taken_until_ns{0};  // one process at a time asks
  // Runs under way.
  alignas(64) std::atomic<uint32_t> running{0};
  std::atomic<uint32_t> active{0};  // threads in them that do not wait for their share or their turn
  std::atomic<int32_t> threads{0};
  std::atomic<int32_t> cpu{-1};  // where the last of them began
  // What the job reports.
  alignas(64) std::atomic<uint64_t> runs{0};
  std::atomic<uint64_t> run_ns{0}, idle_ns{0}, gave_way_ns{0}, last_step_ns{0}, average_step_ns{0};
  std::atomic<uint64_t> device_bytes{0}, host_bytes{0}, disk_bytes{0}, peak_bytes{0}, moved_bytes{0}, moves{0}, moving_ns{0};
  // Written by the owner before the slot is live.
  alignas(64) std::atomic<uint64_t> id{0};
  std::atomic<int64_t> pid{0};
  std::atomic<uint64_t> owner{0};  // of the process: pid, its start and its PID namespace, hashed
  char name[kNameBytes]{};

  double share_percent() const { return share.load(std::memory_order_relaxed) / 100.0; }
};

struct Page {
  char magic[8];
  alignas(64) std::atomic<uint64_t> guaranteed_running;  // a bit per slot
  std::atomic<uint64_t> guaranteed_ended_ns;             // when one of them had no run any more
  alignas(64) std::atomic<Beside> beside;
  std::atomic<uint32_t> guaranteed_bound;  // Bound of the node that a guaranteed job began last
  std::atomic<uint64_t> max_beside_ns;     // longer nodes never run beside a guaranteed job; 0: any
  std::atomic<uint64_t> coordinator_beat_ns;
  std::atomic<int64_t> coordinator_pid;
  std::atomic<uint64_t> last_id, last_profile;
  JobSlot slots[kMaxJobs];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<SlotState>::is_always_lock_free);

/// What a coordinator set counts for so long after its last beat.
inline constexpr uint64_t kCoordinatorTimeoutNs = 2'000'000'000;

/// CLOCK_MONOTONIC, which all processes of a machine share.
uint64_t now_ns() noexcept;

class JobTable {
 public:
  /// The process's; maps the page at the first call. If the folder cannot be used, the table is in private memory, where only this
  /// process sees it, and a warning says why.
  static JobTable& get();

  Page& page() { return *page_; }
  bool shared() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }

  /// A free slot, reset and locked, not yet live. @throws Error(resource_exhausted)
  int claim();
  void publish(int slot) { page_->slots[slot].state.store(SlotState::live, std::memory_order_release); }
  void give_back(int slot);
  /// Frees the slots of processes that have died. Takes some system calls.
  void sweep();
  /// The live slot of that id; -1.
  int find(uint64_t id);

  /// One process is the coordinator. False if another is.
  bool lock_coordinator();
  void unlock_coordinator();
  /// Its process as this one's namespace sees it; 0: there is none.
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

/// Works out JobSlot::word from what is asked of the job, and wakes who sleeps on it. After every change.
void refresh(JobSlot& slot);
/// The same for all live slots, and clears what a coordinator that is gone has granted.
void end_grants(Page& page);

/// Folder for what the jobs of a user share, made if need be: of this user, and nobody else's to read.
/// @throws Error(io_error)
void make_sharing_folder(const std::string& folder);

JobStatus status_of(const JobSlot& slot);
/// @throws Error(invalid_argument)
void apply(Page& page, int slot, const JobChange& change);
/// The slot's job has no guaranteed run under way any more.
void end_guaranteed(Page& page, int slot);
uint32_t share_from_percent(double percent);

}  // namespace treadle::sharing
