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

/// Connects one rank (a process or thread) to the others. All ranks make the same calls in the same order; a call returns when all have
/// made it. One thread at a time may use it. A call throws Error(timed_out), naming the missing ranks, after the deadline; if a rank called
/// fail(), it throws that rank's error. After an error, every later call fails, too.
class TREADLE_API Communicator {
 public:
  virtual ~Communicator();
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Sums `data` over all ranks, in place. All ranks get the same bits, which depend only on the operands and the number of ranks.
  /// @param dtype  float32, float64 or bfloat16
  virtual void all_reduce(void* data, size_t count, DType dtype) = 0;
  /// Copies `data` of rank `root` to all ranks.
  virtual void broadcast(void* data, size_t size_bytes, int root) = 0;
  /// Copies each rank's own part of `data`, which consists of one part per rank, to all ranks.
  /// @param sizes_bytes  sizes of the parts, one per rank. By default, this is a broadcast of each part
  virtual void all_gather(void* data, std::span<const size_t> sizes_bytes);
  /// Sums `data` over all ranks. Each rank gets the sums of its own part; its other parts become undefined. By default, an all-reduce.
  virtual void reduce_scatter(void* data, std::span<const size_t> counts, DType dtype);
  virtual void barrier();
  /// Reports to the other ranks that this one has failed: their calls throw an error with the reason. Must not overlap another call.
  virtual void fail(const std::string& reason) noexcept;
};

inline constexpr double kDefaultCommunicatorDeadlineSeconds = 300;

/// Makes communicators for threads of one process, one per rank. @param deadline_s  seconds that a call waits for the other ranks
TREADLE_API std::vector<std::shared_ptr<Communicator>> make_thread_communicators(int size,
                                                                                 double deadline_s = kDefaultCommunicatorDeadlineSeconds);

/// Connects this process to the other ranks that a launcher has started, by the plugin registered as `name`. The plugin "mpi" is loaded on
/// demand from the file in TREADLE_MPI_PLUGIN, or from the folder plugins/ or treadle/ next to the library.
/// @throws Error(not_found) if there is no such plugin
TREADLE_API std::shared_ptr<Communicator> connect_communicator(std::string_view name,
                                                               double deadline_s = kDefaultCommunicatorDeadlineSeconds);
/// Returns the name for connect_communicator() if a launcher started this process as one of several: "mpi" for mpirun and other launchers
/// with PMI, otherwise "".
TREADLE_API std::string launched_communicator();

}  // namespace treadle
