// The communicator "mpi", for ranks that mpirun has started. The communicator starts non-blocking MPI operations and polls them until a
// deadline, because a blocking MPI call would wait forever if a rank does not join.
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "treadle/plugin.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostElements = size_t{1} << 28;  // MPI counts elements in an int
constexpr int kNoteTag = 7;
constexpr auto kGrace = std::chrono::seconds(2);            // after a deadline: time for the other ranks to report that they wait
constexpr auto kFarewell = std::chrono::milliseconds(500);  // after a failure: time for sending messages about it
constexpr int kBusyPolls = 50, kPollsBetweenLooks = 16;
constexpr useconds_t kPause = 30;

// A message that a rank sends to another rank, apart from the data of the operations: the rank waits for the others, or it has failed.
struct Note {
  enum Kind : int32_t { waits, failed } kind = waits;
  char text[1020] = {};
};

float widen(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
uint16_t narrow(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);  // rounding could make a NaN infinite
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}
void add_bfloat16(void* in, void* inout, int* count, MPI_Datatype*) {
  const auto* a = static_cast<const uint16_t*>(in);
  auto* b = static_cast<uint16_t*>(inout);
  for (int i = 0; i < *count; ++i) b[i] = narrow(widen(a[i]) + widen(b[i]));
}

// True if any communicator of this process has failed. The process initializes MPI once, and finalizes it when the process ends.
bool any_failed = false;
bool started_here = false;
void finalize() {
  // MPI_Finalize() waits until all ranks call it, and after a failure some ranks may never do so. Without the call, mpirun ends those ranks
  // when this process has ended.
  if (started_here && !any_failed) MPI_Finalize();
}

class Ranks {
 public:
  explicit Ranks(double deadline_s)
      : deadline_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline_s))), deadline_s_(deadline_s) {
    MPI_Comm_dup(MPI_COMM_WORLD, &work_);
    MPI_Comm_dup(MPI_COMM_WORLD, &notes_);
    for (MPI_Comm comm : {work_, notes_}) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(work_, &rank_);
    MPI_Comm_size(work_, &size_);
    MPI_Type_contiguous(2, MPI_BYTE, &bfloat16_);
    MPI_Type_commit(&bfloat16_);
    MPI_Op_create(add_bfloat16, /*commute=*/1, &bfloat16_sum_);
  }
  int rank() const { return rank_; }
  int size() const { return size_; }

  bool all_reduce(void* data, size_t count, int dtype) {
    struct Form {
      MPI_Datatype type;
      MPI_Op sum;
      size_t bytes;
    } form{MPI_FLOAT, MPI_SUM, 4};
    if (dtype == TREADLE_FLOAT64)
      form = {MPI_DOUBLE, MPI_SUM, 8};
    else if (dtype == TREADLE_BFLOAT16)
      form = {bfloat16_, bfloat16_sum_, 2};
    else if (dtype != TREADLE_FLOAT32)
      return give_up("an all-reduce of another dtype than float32, float64 and bfloat16");
    for (size_t at = 0; at < count; at += kMostElements) {
      const int part = static_cast<int>(std::min(kMostElements, count - at));
      MPI_Request request = MPI_REQUEST_NULL;
      if (broken() ||
          !began(MPI_Iallreduce(MPI_IN_PLACE, static_cast<char*>(data) + at * form.bytes, part, form.type, form.sum, work_, &request)))
        return false;
      if (!finish(request)) return false;
    }
    return true;
  }

  bool broadcast(void* data, size_t size_bytes, int root) {
    for (size_t at = 0; at < size_bytes; at += kMostElements) {
      const int part = static_cast<int>(std::min(kMostElements, size_bytes - at));
      MPI_Request request = MPI_REQUEST_NULL;
      if (broken() || !began(MPI_Ibcast(static_cast<char*>(data) + at, part, MPI_BYTE, root, work_, &request))) return false;
      if (!finish(request)) return false;
    }
    return true;
  }

  void tell_failure(const char* reason) {
    if (broken()) return;
    give_up(reason);
    tell_all(Note::failed, reason);
    const auto end = Clock::now() + kFarewell;
    for (int done = 0; !done && Clock::now() < end; usleep(kPause))
      MPI_Testall(static_cast<int>(sends_.size()), sends_.data(), &done, MPI_STATUSES_IGNORE);
  }

  const std::string& failure() const { return failure_; }

 private:
  bool broken() const { return !failure_.empty(); }
  bool give_up(std::string text) {
    failure_ = std::move(text);
    any_failed = true;
    return false;
  }
  bool began(int result) {
    if (result == MPI_SUCCESS) return true;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(result, text, &length);
    return give_up(std::string("MPI: ") + text);
  }

  bool finish(MPI_Request& request) {
    const auto end = Clock::now() + deadline_;
    for (int polls = 0;; ++polls) {
      int done = 0;
      if (!began(MPI_Test(&request, &done, MPI_STATUS_IGNORE))) return false;
      if (done) return true;
      if (polls < kBusyPolls) continue;
      usleep(kPause);
      if (polls % kPollsBetweenLooks != 0) continue;
      std::vector<bool> waits(static_cast<size_t>(size_));
      const int heard = read_notes(waits);
      if (broken()) return false;
      // A rank whose deadline has passed sends a message to all ranks, to which the ranks that also wait reply.
      if (heard > 0 || Clock::now() > end) return name_missing(std::move(waits));
    }
  }

  /// Reads messages of other ranks, and notes in `waits` which ranks wait. If another rank has failed, this rank fails too.
  /// @return the number of messages from ranks that wait
  int read_notes(std::vector<bool>& waits) {
    int heard = 0;
    while (true) {
      int there = 0;
      MPI_Status status;
      if (MPI_Iprobe(MPI_ANY_SOURCE, kNoteTag, notes_, &there, &status) != MPI_SUCCESS || !there) return heard;
      Note note;
      if (MPI_Recv(&note, sizeof(note), MPI_BYTE, status.MPI_SOURCE, kNoteTag, notes_, MPI_STATUS_IGNORE) != MPI_SUCCESS) return heard;
      if (note.kind == Note::failed) {
        note.text[sizeof(note.text) - 1] = 0;
        give_up("rank " + std::to_string(status.MPI_SOURCE) + " failed: " + note.text);
        return heard;
      }
      waits[static_cast<size_t>(status.MPI_SOURCE)] = true;
      ++heard;
    }
  }

  bool name_missing(std::vector<bool> waits) {
    tell_all(Note::waits, "");
    waits[static_cast<size_t>(rank_)] = true;
    const auto end = Clock::now() + std::min<Clock::duration>(kGrace, deadline_);
    while (Clock::now() < end && std::count(waits.begin(), waits.end(), false) > 0) {
      read_notes(waits);
      if (broken()) return false;
      usleep(1000);
    }
    std::string missing;
    for (int r = 0; r < size_; ++r)
      if (!waits[static_cast<size_t>(r)]) missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%g", deadline_s_);
    if (missing.empty())
      return give_up(std::string("all ranks wait for each other since ") + seconds + " s: they have made different calls");
    return give_up("rank " + missing + " has not come within " + seconds + " s");
  }

  void tell_all(Note::Kind kind, const char* text) {
    Note& note = told_.emplace_back();
    note.kind = kind;
    std::snprintf(note.text, sizeof(note.text), "%s", text);
    for (int r = 0; r < size_; ++r)
      if (r != rank_) MPI_Isend(&note, sizeof(note), MPI_BYTE, r, kNoteTag, notes_, &sends_.emplace_back());
  }

  MPI_Comm work_ = MPI_COMM_NULL, notes_ = MPI_COMM_NULL;
  MPI_Datatype bfloat16_ = MPI_DATATYPE_NULL;
  MPI_Op bfloat16_sum_ = MPI_OP_NULL;
  int rank_ = 0, size_ = 1;
  const Clock::duration deadline_;
  const double deadline_s_;
  std::string failure_;
  std::deque<Note> told_;  // MPI reads these messages until it has sent them
  std::vector<MPI_Request> sends_;
};

Ranks& ranks_of(void* user) { return *static_cast<Ranks*>(user); }

int connect(void*, const treadle_host* host, double deadline_s, treadle_communicator* out) {
  int initialized = 0, finalized = 0, provided = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized) {
    host->fail("MPI has ended in this process");
    return 0;
  }
  if (initialized) {
    MPI_Query_thread(&provided);
  } else {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    started_here = true;
    std::atexit(finalize);
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    host->fail("MPI lets only the main thread call it: MPI_THREAD_SERIALIZED is needed");
    return 0;
  }
  auto* ranks = new Ranks(deadline_s);
  out->user = ranks;
  out->rank = ranks->rank();
  out->num_ranks = ranks->size();
  out->all_reduce = [](void* user, const treadle_host* h, void* data, size_t count, int32_t dtype) {
    if (ranks_of(user).all_reduce(data, count, dtype)) return 1;
    h->fail(ranks_of(user).failure().c_str());
    return 0;
  };
  out->broadcast = [](void* user, const treadle_host* h, void* data, size_t size_bytes, int32_t root) {
    if (ranks_of(user).broadcast(data, size_bytes, root)) return 1;
    h->fail(ranks_of(user).failure().c_str());
    return 0;
  };
  out->tell_failure = [](void* user, const char* reason) { ranks_of(user).tell_failure(reason); };
  // The memory of `ranks` is never released, because MPI operations that have not ended still access it.
  out->release = nullptr;
  return 1;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int treadle_plugin_main(const treadle_host* host) {
  if (host->version < TREADLE_PLUGIN_VERSION) {
    host->fail("the library is older than this plugin");
    return 0;
  }
  treadle_communicator_type type{};
  type.size = sizeof(type);
  type.name = "mpi";
  type.connect = connect;
  return host->register_communicator(&type);
}
