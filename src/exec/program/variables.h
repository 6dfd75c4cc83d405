// The memory of a graph's parameters and states, which changes between runs, and how often it has changed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/content_digest.h"
#include "treadle/tensor.h"

namespace treadle {
class ThreadPool;
}

namespace treadle::exec {

/// Tensors by the names of the values (Value::Kind::parameter) whose elements they are. Their owner writes them between runs and says so;
/// what others may write unseen is compared before each run instead. Programs read them in place, and keep what they have packed for as
/// long as the version stays. Thread-safe, but for the elements themselves.
class Variables {
 public:
  /// @return the variable's place. @pre the name is new
  size_t add(const std::string& name, Tensor tensor);
  /// Other memory, whose elements may be others. The same memory again, where it is watched, is no change by itself.
  void set(size_t place, Tensor tensor);
  /// The elements of one, or of all, have been written.
  void note_changed(size_t place);
  void note_changed();
  /// From now on (until it is called with false) somebody may write the elements without a word: look() compares their digests.
  void watch(bool unseen);

  /// Finds out what has been written unseen: reads every byte of what is watched. Before a run.
  void look(ThreadPool* pool);

  /// For the length of a run that reads the elements. Runs read side by side; a writer waits for them, and later ones for it.
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
  /// Differs after every change of any variable.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  struct Variable {
    Version version;
    std::optional<ContentDigest> digest;  // of the elements as of this version, where they have been watched since
  };
  void change(Variable& variable);

  std::mutex gate_mutex_;  // of the next three
  std::condition_variable gate_;
  int num_readers_ = 0, num_writers_ = 0;  // writers that wait count as well
  bool is_written_ = false;
  mutable std::mutex mutex_;
  std::map<std::string, size_t> places_;
  std::vector<Variable> variables_;
  std::atomic<uint64_t> version_{0};
  std::atomic<bool> watched_{false};
};

}  // namespace treadle::exec
