// A dependency engine: operations are pushed with the variables that they read and write, and run as soon as these allow it.
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
  int num_threads = 0;  ///< threads of the engine. They take no part in the loops of nodes. 0: as many as usable CPUs, at least 2
  /// Number of scratch spaces, handed out in turn. More of them allow more operations with scratch at once, and take more memory.
  int num_scratch_spaces = 4;
  std::shared_ptr<Allocator> allocator;  ///< of scratch spaces; null: the system
};

/// Orders runs, parameter updates, copies and other operations by data, not by locks. Operations that write a variable run one at
/// a time and in the order of pushing; those that only read it run at once between them.
/// An operation that throws leaves its error in the variables that it writes. Operations that read such a variable do not run and pass the
/// error on; one that only writes it runs and clears it. The error surfaces at wait_for() or wait_all(), once. Thread-safe.
class TREADLE_API Engine {
 public:
  /// Something that operations read and write. The engine does not know what it stands for. Copies are the same variable.
  class TREADLE_API Variable {
   public:
    /// How many operations have written it.
    uint64_t version() const;
    struct State;  // opaque

   private:
    friend class Engine;
    void expect_written(std::string_view what) const;  // by the operation that runs on this thread
    std::shared_ptr<State> state_;
  };
  using Operation = std::function<void()>;

  /// Memory for the duration of an operation. Operations that use it write its variable, so that only one does at a time. Its content is
  /// undefined at the start of an operation. Copies are the same space.
  class TREADLE_API Scratch {
   public:
    const Variable& variable() const;
    /// At least this many bytes at a multiple of Storage::kAlignment, until the operation ends. The space keeps them for the next one.
    /// @throws Error(invalid_argument) outside of an operation that writes the variable; Error(resource_exhausted)
    std::byte* get(size_t size_bytes) const;
    size_t capacity_bytes() const;  ///< its present size; may be called where get() may

   private:
    friend class Engine;
    struct State;
    std::shared_ptr<State> state_;
  };

  /// Random numbers that depend only on the seed and the order of pushing, not on threads. Operations that take some write its variable.
  /// Source: Philox 4x32-10 (Salmon and others 2011). Copies are the same stream.
  class TREADLE_API RandomStream {
   public:
    const Variable& variable() const;
    /// The next numbers of the stream: uniform in [0, 1), or of the standard normal distribution.
    /// @throws Error(invalid_argument) outside of an operation that writes the variable.
    void uniform(std::span<double> values) const;
    void normal(std::span<double> values) const;
    /// Restarts the stream for later operations. Only within an operation that writes the variable.
    void seed(uint64_t seed) const;

   private:
    friend class Engine;
    struct State;
    std::shared_ptr<State> state_;
  };

  explicit Engine(const EngineOptions& options = {});
  ~Engine();  ///< waits for all operations; their errors are dropped
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Variable variable();
  Scratch scratch();
  RandomStream random_stream(uint64_t seed);
  /// @param reads, writes  a variable in both, or twice in one, counts as written once.
  /// @param priority       of operations that could run, the highest goes first; then the first pushed.
  /// @throws Error(invalid_argument) for an empty operation, or a variable of another engine.
  void push(Operation operation, std::span<const Variable> reads, std::span<const Variable> writes, int priority = 0);

  /// Pushes a run of a session. Its results, or its error, are in the future; the error is also in `writes`. The session must outlive it.
  std::future<std::vector<Datum>> run_async(const Session& session, std::map<std::string, Datum> feeds,
                                            std::vector<std::string> outputs = {}, std::span<const Variable> reads = {},
                                            std::span<const Variable> writes = {}, int priority = 0);

  /// Waits for the operations pushed so far that write the variable, and throws the error that it holds. Not from within an operation.
  void wait_for(const Variable& variable);
  /// Waits for all operations and throws the first error that no wait has surfaced yet. Not from within an operation.
  void wait_all();
  size_t num_pending() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace treadle
