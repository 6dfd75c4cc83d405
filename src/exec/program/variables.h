// The memory of a graph's parameters and states, with a version number for each.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/files/content_digest.h"
#include "treadle/tensor.h"

namespace treadle {
class ThreadPool;
}

namespace treadle::exec {

/// Tensors by the names of the parameters (Value::Kind::parameter) whose elements they hold. Their owner writes them between runs and
/// reports each change. If others may write them without a report, they are compared by digest before each run. Programs read the tensors
/// in place, and keep packed copies as long as the version stays the same. Thread-safe, except for the elements themselves.
class Variables {
 public:
  /// @return the variable's index, called `place` below. @pre the name is new
  size_t add(const std::string& name, Tensor tensor);
  /// Replaces the tensor, which counts as a change, unless it is the same memory and its contents are watched.
  void set(size_t place, Tensor tensor);
  /// Reports that the elements of one variable, or of all, have been written.
  void note_changed(size_t place);
  void note_changed();
  /// With `unseen`, the elements may be written without note_changed() from now on, and look() compares their digests. False ends that.
  void watch(bool unseen);

  /// Must be called before a run. If the variables are watched, it reads all their bytes and counts differences as changes.
  void look(ThreadPool* pool);

  /// Locks the elements for reading while a run reads them. Several runs may read at the same time. A writer waits for them, and runs that
  /// begin later wait for the writer.
  class Reading {
   public:
    explicit Reading(Variables& variables);
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    Variables& variables_;
  };
  class Writing {
   public:
    explicit Writing(Variables& variables);
    ~Writing();
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;

   private:
    Variables& variables_;
  };

  struct Version {
    Tensor tensor;
    uint64_t number = 0;
  };
  std::optional<size_t> find(const std::string& name) const;
  Version at(size_t place) const;
  /// Returns a number that every change of any variable increases.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  struct Variable {
    Version version;
    std::optional<ContentDigest> digest;  // digest of the elements in this version; nullopt if look() has not read them yet
  };
  void change(Variable& variable);

  std::mutex gate_mutex_;  // guards the next three members
  std::condition_variable gate_;
  int num_readers_ = 0, num_writers_ = 0;  // waiting writers count, too
  bool is_written_ = false;
  mutable std::mutex mutex_;
  std::map<std::string, size_t> places_;
  std::vector<Variable> variables_;
  std::atomic<uint64_t> version_{0};
  std::atomic<bool> watched_{false};
};

}  // namespace treadle::exec
