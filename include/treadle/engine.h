// A dependency engine: an operation is pushed with the variables that it reads and writes, and runs when earlier ones no longer conflict.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "treadle/allocator.h"
#include "treadle/export.h"
#include "treadle/session.h"

namespace treadle {

struct EngineOptions {
  /// Runs operations inside push(), on the caller's thread, in the order of pushing (for debugging).
  bool naive = false;
  int num_threads = 0;  ///< number of engine threads, which are separate from sessions' thread pools; 0: as many as usable CPUs, at least 2
  /// Number of scratch spaces, which operations use in rotation. More spaces let more operations use scratch at once, but take more memory.
  int num_scratch_spaces = 4;
  std::shared_ptr<Allocator> allocator;  ///< allocator of scratch spaces; null: the system
};

/// Orders runs, parameter updates, copies and other operations by data instead of locks. Operations that write a variable run one at a
/// time, in the order of pushing; between them, operations that only read it run concurrently. If an operation throws, the variables that
/// it writes keep the error. Operations that read such a variable do not run, and pass the error on. An operation that only writes it runs
/// and clears the error. wait_for() or wait_all() throws the error, once. Thread-safe.
class TREADLE_API Engine {
 public:
  /// A handle of an object that operations read or write; the engine never accesses the object. Copies are handles of the same variable.
  class TREADLE_API Variable {
   public:
    /// Returns the number of operations that have written the variable.
    uint64_t version() const;
    struct State;  // a type that callers cannot see

   private:
    friend class Engine;
    void expect_written(std::string_view what) const;  // throws unless the operation on this thread writes this variable
    std::shared_ptr<State> state_;
  };
  using Operation = std::function<void()>;

  /// Memory that an operation may use while it runs. An operation that uses it must be pushed as a writer of variable(), so only one
  /// operation uses it at a time. Its content is undefined when an operation begins. Copies are handles of the same memory.
  class TREADLE_API Scratch {
   public:
    const Variable& variable() const;
    /// Returns at least this many bytes, aligned to Storage::kAlignment, valid until the operation ends. Later operations may get the same
    /// memory.
    /// @throws Error(invalid_argument) outside an operation that writes the variable; Error(resource_exhausted)
    std::byte* get(size_t size_bytes) const;
    size_t capacity_bytes() const;  ///< returns the present size; callable only where get() is

   private:
    friend class Engine;
    struct State;
    std::shared_ptr<State> state_;
  };

  /// Random numbers that depend only on the seed and the order of pushing, not on threads. An operation that draws numbers must be pushed
  /// as a writer of variable(). Copies are the same stream. Source: Philox 4x32-10 (Salmon and others 2011).
  class TREADLE_API RandomStream {
   public:
    const Variable& variable() const;
    /// Draws the next numbers: uniform in [0, 1), or of the standard normal distribution.
    /// @throws Error(invalid_argument) outside an operation that writes the variable
    void uniform(std::span<double> values) const;
    void normal(std::span<double> values) const;
    /// Restarts the stream for later operations. Call it only within an operation that writes the variable.
    void seed(uint64_t seed) const;

   private:
    friend class Engine;
    struct State;
    std::shared_ptr<State> state_;
  };

  explicit Engine(const EngineOptions& options = {});
  ~Engine();  ///< waits for all operations and drops their errors
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Variable variable();
  Scratch scratch();
  RandomStream random_stream(uint64_t seed);
  /// Pushes an operation. @param reads, writes  its variables; one that is in both lists counts as written; repetitions are ignored
  /// @param priority  of several ready operations, the one with the highest priority runs first; among equals, the one pushed first
  /// @throws Error(invalid_argument) for an empty operation or a variable of another engine
  void push(Operation operation, std::span<const Variable> reads, std::span<const Variable> writes, int priority = 0);

  /// Pushes a run of a session. The future gets its results or error; variables in `writes` get the error, too. The session must outlive
  /// the run.
  std::future<std::vector<Datum>> run_async(const Session& session, std::map<std::string, Datum> feeds,
                                            std::vector<std::string> outputs = {}, std::span<const Variable> reads = {},
                                            std::span<const Variable> writes = {}, int priority = 0);

  /// Waits for all pushed operations that write the variable, and throws the error that it holds. Not callable within an operation.
  void wait_for(const Variable& variable);
  /// Waits for all operations, and throws the first error that no earlier wait has thrown. Not callable within an operation.
  void wait_all();
  size_t num_pending() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace treadle
