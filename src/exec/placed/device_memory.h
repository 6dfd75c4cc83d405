// Counts and limits the memory that the programs of a session hold on its devices.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "exec/memory/governor.h"
#include "exec/memory/job_memory.h"
#include "treadle/allocator.h"

namespace treadle::exec {

struct DeviceMemory {
  /// @param of_job  the job's memory, to which bytes are charged too; null if the session belongs to no job
  /// @param limited true if the session has a limit. Then every step needs all values that it uses in its device's memory
  /// @param in_folder  the folder for values that are written to a file; empty: the system's temporary folder
  explicit DeviceMemory(std::shared_ptr<JobMemory> of_job = nullptr, bool limited = false, std::string in_folder = {});
  Governor& governor() { return job ? job->governor() : own_; }
  /// Sets the limit for all devices together; 0 removes it.
  void set_limit(size_t limit_bytes);

  const std::shared_ptr<JobMemory> job;
  const bool has_limit;
  const std::string spill_folder;
  MemoryAccount account;

 private:
  Governor own_;
};

}  // namespace treadle::exec
