// Processes, or threads, that train one model together.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "treadle/dtype.h"
#include "treadle/export.h"

namespace treadle {

/// One rank among several. All ranks make the same calls in the same order; a call returns when the others have made theirs. One thread at
/// a time uses it. Every call throws Error(timed_out) naming the ranks that have not come when its deadline passes, and the error of a rank
/// that has called fail(); no call succeeds after that.
class TREADLE_API Communicator {
 public:
  virtual ~Communicator();
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Sums over all ranks, in place. Every rank gets the same bits, and the same again for the same operands and number of ranks.
  /// @param dtype  float32, float64 or bfloat16.
  virtual void all_reduce(void* data, size_t count, DType dtype) = 0;
  /// The bytes of rank `root` for all.
  virtual void broadcast(void* data, size_t size_bytes, int root) = 0;
  /// `data` holds a part for each rank, one after the other; each rank's own part for all.
  /// @param sizes_bytes  of the parts, one for each rank. By default a broadcast of each.
  virtual void all_gather(void* data, std::span<const size_t> sizes_bytes);
  /// Sums over all ranks, of which each keeps its own part; the others' contents are undefined. By default an all-reduce.
  virtual void reduce_scatter(void* data, std::span<const size_t> counts, DType dtype);
  virtual void barrier();
  /// Tells the other ranks that this one has failed: their calls throw an error with the reason. Callable while no other call is under way.
  virtual void fail(const std::string& reason) noexcept;
};

inline constexpr double kDefaultCommunicatorDeadlineSeconds = 300;

/// Ranks of one process, for a thread each. @param deadline_s  how long a call waits for the others.
TREADLE_API std::vector<std::shared_ptr<Communicator>> make_thread_communicators(int size,
                                                                                 double deadline_s = kDefaultCommunicatorDeadlineSeconds);

/// Joins the ranks that a launcher has started, through a plugin that has registered this name; the one named "mpi" is loaded when it is
/// asked for (TREADLE_MPI_PLUGIN, or plugins/ or treadle/ beside the library).
/// @throws Error(not_found) if there is no such plugin.
TREADLE_API std::shared_ptr<Communicator> connect_communicator(std::string_view name,
                                                               double deadline_s = kDefaultCommunicatorDeadlineSeconds);
/// The name to connect to if a launcher has started this process as one of several: "mpi" where mpirun or another launcher with PMI says
/// so, "" otherwise.
TREADLE_API std::string launched_communicator();

}  // namespace treadle
