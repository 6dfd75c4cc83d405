// Communication between processes or threads that train one model together.
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

/// One of several ranks. All ranks make the same calls in the same order, and a call returns when the others have made theirs. One thread
/// at a time may use it. Calls throw Error(timed_out), naming the missing ranks, when the deadline passes, and the error of a rank that
/// called fail(). No call succeeds after an error.
class TREADLE_API Communicator {
 public:
  virtual ~Communicator();
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Sums over all ranks, in place. All ranks get the same bits, which depend only on the operands and the number of ranks.
  /// @param dtype  float32, float64 or bfloat16
  virtual void all_reduce(void* data, size_t count, DType dtype) = 0;
  /// Copies the bytes of rank `root` to all ranks.
  virtual void broadcast(void* data, size_t size_bytes, int root) = 0;
  /// `data` consists of a part per rank. Copies each rank's own part to all ranks.
  /// @param sizes_bytes  of the parts, one per rank. Default: a broadcast of each part
  virtual void all_gather(void* data, std::span<const size_t> sizes_bytes);
  /// Sums over all ranks. Each rank gets the sums for its own part; its other parts become undefined. Default: an all-reduce.
  virtual void reduce_scatter(void* data, std::span<const size_t> counts, DType dtype);
  virtual void barrier();
  /// Reports to the other ranks that this one has failed: their calls throw an error with the reason. Must not overlap another call.
  virtual void fail(const std::string& reason) noexcept;
};

inline constexpr double kDefaultCommunicatorDeadlineSeconds = 300;

/// Makes communicators for threads of one process, one per rank. @param deadline_s  how long a call waits for the others
TREADLE_API std::vector<std::shared_ptr<Communicator>> make_thread_communicators(int size,
                                                                                 double deadline_s = kDefaultCommunicatorDeadlineSeconds);

/// Joins the ranks that a launcher has started, through the plugin registered under this name. The plugin "mpi" is loaded on demand from
/// TREADLE_MPI_PLUGIN, or from plugins/ or treadle/ next to the library.
/// @throws Error(not_found) if there is no such plugin
TREADLE_API std::shared_ptr<Communicator> connect_communicator(std::string_view name,
                                                               double deadline_s = kDefaultCommunicatorDeadlineSeconds);
/// The name to connect to if a launcher started this process as one of several: "mpi" if mpirun or another launcher with PMI did, otherwise
/// "".
TREADLE_API std::string launched_communicator();

}  // namespace treadle
