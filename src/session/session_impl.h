// What a Session holds: the optimised graph, its program, and programs for other sets of feeds and fetches.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/recorder.h"
#include "core/thread_pool.h"
#include "exec/frame.h"
#include "exec/program.h"
#include "graph/graph.h"
#include "session/model.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle {

/// A program for one set of fed and fetched values.
struct Executable {
  std::shared_ptr<const Graph> graph;
  std::unique_ptr<exec::Program> program;
  std::vector<std::string> input_names, output_names;
};

struct Session::Impl {
  Impl(const Model& model, const SessionOptions& options);

  /// The program that computes `outputs` (empty: all) where the initializers named in `overridden` are fed.
  std::shared_ptr<const Executable> executable(std::span<const std::string> outputs, std::span<const std::string> overridden) const;
  exec::RunControl control(const RunOptions* run_options) const;
  /// Names the node that cannot take the feeds' shapes: inference again, on a fresh graph, with the real extents.
  [[noreturn]] void explain(const Executable& executable, std::span<const Datum> feeds, const Error& error) const;
  /// A graph of the model, upgraded and with the options' overrides; `overridden` initializers are inputs.
  std::unique_ptr<Graph> prepare(std::span<const std::string> overridden) const;
  void optimise(Graph& graph) const;
  exec::ProgramOptions program_options() const { return {.reuse_memory = options.reuse_memory, .pool = pool.get()}; }

  Model model;
  SessionOptions options;
  std::shared_ptr<ThreadPool> pool;
  std::shared_ptr<const Executable> main;
  std::unordered_map<std::string, size_t> known_inputs;  // inputs and overridable initializers
  mutable std::atomic<uint64_t> num_runs{0};
  std::unique_ptr<Recorder> recorder;  // while profiling; kept until the session ends, as runs in flight may hold it
  mutable std::atomic<bool> profiling{false};
  uint32_t run_record = 0;

  // Other sets of feeds and fetches, most recent first.
  static constexpr size_t kMaxExecutables = 8;
  mutable std::mutex mutex;
  mutable std::list<std::pair<std::string, std::shared_ptr<const Executable>>> others;
};

}  // namespace treadle
