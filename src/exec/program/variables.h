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

/// Tensors with the elements of parameters (Value::Kind::parameter), by the parameters' names. The owner writes them between runs and
/// reports each change. If others may write them without reporting it, their digests are compared before each run. Programs read the
/// tensors in place, and keep packed copies as long as the version stays the same. Thread-safe, except for the elements.
class Variables {
 public:
  /// @return the variable's index, called `place` below. @pre the name is new
  size_t add(const std::string& name, Tensor tensor);
  /// Replaces the tensor and counts this as a change, unless the memory is the same and its contents are watched.
  void set(size_t place, Tensor tensor);
  /// Reports that elements of one variable, or of any variable, have been written.
  void note_changed(size_t place);
  void note_changed();
  /// If `unseen` is true, elements may from now on be written without note_changed(), and look() compares their digests. False ends this.
  void watch(bool unseen);

  /// Must be called before a run. If the variables are watched, reads all their bytes and counts any difference as a change.
  void look(ThreadPool* pool);

  /// Locks the elements while a run reads them. Several runs may read at the same time. A writer waits for running readers, and runs that
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
  /// Returns a number that increases with every change of any variable.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  struct Variable {
    Version version;
    std::optional<ContentDigest> digest;  // digest of the elements in this version; nullopt if look() has not read them yet
  };
  void change(Variable& variable);

  std::mutex gate_mutex_;  // guards the next three members
  std::condition_variable gate_;
  int num_readers_ = 0, num_writers_ = 0;  // a waiting writer counts too
  bool is_written_ = false;
  mutable std::mutex mutex_;
  std::map<std::string, size_t> places_;
  std::vector<Variable> variables_;
  std::atomic<uint64_t> version_{0};
  std::atomic<bool> watched_{false};
};

}  // namespace treadle::exec
