// Faults for tests: an operator whose kernel fails on request, an allocator that fails, and random models made of them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "tests/session/models.h"
#include "treadle/treadle.hpp"

namespace treadle::testing {

/// A gate that blocks threads until it is opened.
class Gate {
 public:
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    reached_ = true;
    changed_.wait(lock, [&] { return open_; });
  }
  /// Returns true if a thread has reached the gate.
  bool reached() {
    std::lock_guard lock(mutex_);
    return reached_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false, reached_ = false;
};

/// Registers Step (bound before the run), WideStep (in a parallel loop) and DynamicStep (bound during the run) of the domain "test.fault":
/// y = x + 1. Before that, or in a chunk of the loop, they call the action that set_fault() has set for their attribute `id`. The gradient
/// of Step and WideStep is a Pass with the next `id`, which returns its input.
void register_fault_operators();
/// @param action  a function that is called once, by the next kernel of node `id` that starts. Empty: no function is called.
void set_fault(int64_t id, std::function<void()> action);

/// An allocator that counts its blocks. The allocation with the number `fail_at` (from 0) fails; with `all`, all later ones fail too.
class FaultyAllocator final : public Allocator {
 public:
  std::string_view name() const noexcept override { return "faulty"; }
  void* allocate(size_t size_bytes, MemoryClass memory_class) override;
  void free(void* data, size_t size_bytes, MemoryClass memory_class) noexcept override;
  void fail(int64_t first, bool all);
  void work();
  int64_t live() const { return live_; }

 private:
  std::atomic<int64_t> live_{0}, until_failure_{0};
  std::atomic<bool> armed_{false}, all_{false};
};

/// A random model of Step, WideStep and DynamicStep nodes, additions and the like, with a Loop now and then, over a vector of floats "x".
/// Some nodes are in the groups "left" and "right", for sessions on several devices.
struct RandomModel {
  /// @param yields  true: the model has one treadle.Yield, named "stop"
  RandomModel(std::mt19937& random, bool yields);

  /// Returns the outputs for a feed, computed element by element. The test compares with these.
  std::vector<std::vector<float>> expected(const std::vector<float>& x) const;

  ModelBuilder builder;
  int64_t num_steps = 0;  ///< number of nodes that can be made to fail; their ids are 0 … num_steps - 1
  std::vector<std::string> output_names;

 private:
  struct Operation {
    std::string op;
    std::vector<size_t> inputs;
  };
  std::vector<Operation> operations_;  // operation i computes value i + 1; value 0 is x
  std::vector<size_t> outputs_;
};

}  // namespace treadle::testing
