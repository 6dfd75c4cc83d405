// Sessions: a model made ready to run, and its runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "treadle/datum.h"
#include "treadle/export.h"
#include "treadle/model.h"

namespace treadle {

enum class GraphOptimizationLevel : int { disable_all = 0, basic = 1, extended = 2, layout = 3, all = 99 };

/// What the session is to do with a training graph or an inference graph: inference-only passes (batch-norm into convolution) run or not.
enum class SessionMode : int { inference = 0, training = 1 };

struct TREADLE_API SessionOptions {
  int intra_op_num_threads = 0;  ///< threads of one node, the caller included; 0: the process's shared pool, sized by affinity and cgroup
  int inter_op_num_threads = 0;  ///< nodes at once; the sequential executor runs one
  GraphOptimizationLevel graph_optimization_level = GraphOptimizationLevel::all;
  SessionMode mode = SessionMode::inference;
  bool reuse_memory = true;    ///< false: every value has bytes of its own (to debug)
  bool use_mmap = true;        ///< where the session loads the model itself
  bool strict_symbols = true;  ///< false: the same symbol may have different values in different inputs
  bool enable_profiling = false;
  std::string profile_file_prefix = "treadle_profile_";
  std::string optimized_model_filepath;                     ///< where to write the optimised model; empty: nowhere
  std::vector<std::string> disabled_passes;                 ///< by name; `treadle options` lists them
  int64_t max_patches = INT64_MAX;                          ///< stop the graph optimiser after that many patches (to bisect a fault)
  std::map<std::string, int64_t> free_dimension_overrides;  ///< symbol → extent
  std::map<std::string, int64_t> denotation_overrides;      ///< denotation of an input's dimension ("DATA_BATCH") → extent
  std::map<std::string, Tensor> initializers;               ///< replace initializers of these names
  std::map<std::string, std::string> config;  ///< ONNX Runtime's session config entries; kept, see docs/options.md for those with meaning
  /// Called once per pass that changed something: name, what it did, microseconds.
  std::function<void(std::string_view pass, const std::string& what, int64_t elapsed_us)> on_pass;
  /// Called with warnings about the model.
  std::function<void(const std::string&)> on_warning;
};

/// Sets an option by its name, from text; `treadle options` lists them all. Lists grow.
/// @throws Error(not_found) for a name that does not exist; Error(invalid_argument) for a value that the option does not take.
TREADLE_API void set_option(SessionOptions& options, std::string_view name, const std::string& value);
/// Keeps a config entry, and sets the option that it stands for, if there is one. @throws Error(invalid_argument) as set_option.
TREADLE_API void add_config_entry(SessionOptions& options, const std::string& key, const std::string& value);

/// Options of one run; may be shared by several. `terminate` may be set from any thread.
struct TREADLE_API RunOptions {
  std::atomic<bool> terminate{false};
  int64_t deadline_ms = 0;  ///< from the start of the run; 0: none
  std::string tag;
  std::map<std::string, std::string> config;
};

class Session;

/// Inputs and outputs bound by name ahead of the runs, so that a run looks nothing up and allocates nothing.
class TREADLE_API IoBinding {
 public:
  explicit IoBinding(const Session& session);
  ~IoBinding();
  IoBinding(IoBinding&&) noexcept;
  IoBinding& operator=(IoBinding&&) noexcept;

  void bind_input(std::string_view name, Datum value);
  /// Memory that the output is written to; without memory the session makes it at every run.
  void bind_output(std::string_view name, std::optional<Tensor> memory = std::nullopt);
  void clear_inputs();
  void clear_outputs();
  /// In the order of binding; those of the last run.
  std::vector<Datum> outputs() const;
  std::vector<std::string> output_names() const;

 private:
  friend class Session;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A run that stops at every `treadle.Yield` node. May be resumed from another thread, interleaved with others, or abandoned.
class TREADLE_API PartialRun {
 public:
  ~PartialRun();
  PartialRun(PartialRun&&) noexcept;
  PartialRun& operator=(PartialRun&&) noexcept;

  /// Runs to the next Yield or to the end. @return true at the end.
  bool advance();
  /// At a Yield: the values it hands out, by name.
  std::vector<std::pair<std::string, Datum>> yielded() const;
  /// At a Yield: hands values in (one per output of the Yield) and goes on to the next Yield or the end. @return true at the end.
  bool resume(std::span<const Datum> values);
  bool finished() const;
  /// At the end: the outputs, in the order of the session's.
  std::vector<Datum> outputs();

 private:
  friend class Session;
  struct Impl;
  explicit PartialRun(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// An input that takes what an output gave in the run before: a KV cache, the hidden state of a recurrent network.
struct StatePair {
  std::string input, output;
};

/// Runs of one sequence whose states go from run to run without being copied. What a state lay in becomes the room for the state after
/// the next, with capacity to spare, so that a steady run makes no memory for it; where an output is its input and then some
/// (Concat(past, new) along the outermost axis), the new elements are appended in place. Of one thread at a time; any number of them may
/// use one session, which must outlive them.
class TREADLE_API StatefulRun {
 public:
  /// @param initial  values of paired inputs for the first run, given up: memory that nobody else holds may be written to. States of a
  /// fixed
  ///                 shape that are not given begin with zeros.
  /// @throws Error(invalid_argument) for a name that does not exist, or a state without a fixed shape or an initial value.
  StatefulRun(const Session& session, const std::vector<StatePair>& pairs, std::map<std::string, Datum> initial = {});
  ~StatefulRun();
  StatefulRun(StatefulRun&&) noexcept;
  StatefulRun& operator=(StatefulRun&&) noexcept;

  /// @param feeds    values of the other inputs.
  /// @param outputs  names of the outputs wanted; empty: all that are not states.
  /// @return one value per wanted output. After an error the states are those before the run.
  std::vector<Datum> run(const std::map<std::string, Datum>& feeds, std::span<const std::string> outputs = {},
                         const RunOptions* options = nullptr);
  /// The value that the paired input takes in the next run. While somebody holds it, its memory is not used again.
  Datum state(std::string_view input) const;
  /// Gives the value up as in the constructor.
  void set_state(std::string_view input, Datum value);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct MemoryReport {
  size_t weight_bytes = 0, packed_bytes = 0, arena_bytes = 0, arena_lower_bound_bytes = 0;
};

/// Thread-safe: any number of threads may run one session at once.
class TREADLE_API Session {
 public:
  /// @throws Error; not_implemented names everything that is missing at once.
  explicit Session(const Model& model, const SessionOptions& options = {});
  explicit Session(const std::string& path, const SessionOptions& options = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// @param feeds    values by input name; overridable initializers may be fed as well.
  /// @param outputs  names of the outputs wanted; empty: all. Only what they need is computed.
  /// @return one value per wanted output.
  /// @throws Error(invalid_argument) naming the feed that is missing, unknown, or of another type or shape.
  std::vector<Datum> run(const std::map<std::string, Datum>& feeds, std::span<const std::string> outputs = {},
                         const RunOptions* options = nullptr) const;
  void run(IoBinding& binding, const RunOptions* options = nullptr) const;
  std::future<std::vector<Datum>> run_async(std::map<std::string, Datum> feeds, std::vector<std::string> outputs = {}) const;
  PartialRun partial_run(const std::map<std::string, Datum>& feeds) const;

  const Model& model() const;
  const SessionOptions& options() const;
  std::vector<ValueInfo> inputs() const;
  std::vector<ValueInfo> outputs() const;
  std::vector<ValueInfo> overridable_initializers() const;

  /// The optimised graph, or the flat list of instructions with placement and memory, as text.
  std::string to_text(std::string_view stage) const;  // "onnx", "optimised", "planned"
  /// After at least one run.
  MemoryReport memory() const;
  /// Writes the profile so far and returns its path; profiling goes off.
  std::string end_profiling();
  int64_t profiling_start_ns() const;

 private:
  friend class IoBinding;
  friend class StatefulRun;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// "0.1.0"
TREADLE_API std::string_view version();

}  // namespace treadle
