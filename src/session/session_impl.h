// The implementation of Session: the optimized graph, its program, and programs for other sets of feeds and fetches.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "compiled/file.h"
#include "core/threads/thread_pool.h"
#include "core/trace/node_counters.h"
#include "core/values/allocation.h"
#include "exec/program/program.h"
#include "graph/graph.h"
#include "plugin/backend.h"
#include "session/executable.h"
#include "session/model.h"
#include "session/runtime.h"
#include "treadle/error.h"
#include "treadle/hooks.h"
#include "treadle/session.h"
#include "treadle/sharing.h"

namespace treadle {

/// The names that a run feeds and fetches. A program is compiled for each distinct request.
struct Request {
  std::span<const std::string> fetches;  ///< empty: all outputs, or none if there are targets
  std::span<const std::string> fed;      ///< fed values that are no inputs of the model: initializers and computed values
  std::span<const std::string> targets;  ///< nodes or values that are computed but not fetched
  bool all_constants = false;            ///< keep weights even after kernels have packed them, for callers that look at a node's inputs
  bool own_symbols = false;              ///< make each extent of an input a separate symbol; see needs_own_symbols()
};

/// The feeds of a run, by name: the caller's values, the parameters of its adapters, and values that its client adds.
class RunFeeds {
 public:
  using Given = std::map<std::string, Datum>;
  /// @param given    must outlive this object
  /// @param options  may be null
  /// @throws Error(invalid_argument) if an adapter's parameter is fed by the caller too
  RunFeeds(const Given& given, const RunOptions* options);
  RunFeeds(const RunFeeds&) = delete;
  RunFeeds& operator=(const RunFeeds&) = delete;
  /// @param value  must outlive this object. It is not copied, because a state with two owners cannot grow in place.
  /// @return false if the name is fed already
  bool add(const std::string& name, const Datum& value) { return !given_.contains(name) && added_.emplace(name, &value).second; }
  /// Returns the feed of this name. Null: the name is not fed.
  const Datum* find(const std::string& name) const;
  /// Returns the fed names that satisfy `wanted`.
  template <typename Predicate>
  std::vector<std::string> names(const Predicate& wanted) const {
    std::vector<std::string> found;
    for (const auto& [name, value] : given_)
      if (wanted(name)) found.push_back(name);
    for (const auto& [name, value] : added_)
      if (wanted(name)) found.push_back(name);
    return found;
  }

 private:
  const Given& given_;
  std::list<Datum> of_adapters_;  // the values that added_ points to
  std::map<std::string, const Datum*> added_;
};

/// The program chosen for a run, with its feeds.
struct ChosenProgram {
  std::shared_ptr<const Monitor> monitor;  ///< the session's monitor, for which the program was compiled; null: none
  std::shared_ptr<const Executable> executable;
  std::vector<Datum> feeds;  ///< in the order of the executable's inputs
  bool compiled = false;     ///< the executable was compiled for this run, not taken from the cache
};

/// The implementation of a session: a model with the environment of its runs.
struct Session::Impl : Runtime {
  Impl(const Model& model, const SessionOptions& options);
  ~Impl();

  /// Returns the program for a request. Sets `*compiled` to true if this call compiled it, and to false if it existed already.
  std::shared_ptr<const Executable> executable(const Request& request, const Monitor* monitor, bool* compiled = nullptr) const;
  struct Wanted {
    std::span<const std::string> outputs;    ///< see Request::fetches
    const RunOptions* options = nullptr;     ///< options whose targets are computed too; may be null
    std::span<const std::string> kept = {};  ///< targets in addition to those of the options
    bool takes_feeds_later = false;          ///< missing feeds are left undefined, to be fed during the run
  };
  /// Finds or compiles the program for what a run fetches and feeds. Feeds that contradict the model's symbols get a program without these
  /// symbols; the first time, a warning is given.
  /// @throws Error(invalid_argument) for a missing input, or a name that the model does not have
  ChosenProgram choose_program(const Wanted& wanted, const RunFeeds& feeds) const;
  ChosenProgram find_program(const Wanted& wanted, const RunFeeds& feeds) const;  // the same, but counts no errors
  /// True if the feeds contradict the model's symbols and the options permit it.
  /// @param feeds  in the order of the executable's inputs
  bool needs_own_symbols(const Executable& executable, std::span<const Datum> feeds) const;
  std::shared_ptr<const Executable> compile(const Request& request, const Monitor* monitor) const;
  std::shared_ptr<const Executable> make_further(const Request& request, const Monitor* monitor) const;
  std::unique_ptr<Graph> types_of_fed(const Request& request) const;
  /// Returns true for an initializer or a computed value. Feeding such a value needs a program other than the main one.
  bool is_fed_apart(const std::string& name) const {
    auto found = known_inputs.find(name);
    return found == known_inputs.end() || found->second >= main->input_names.size();
  }
  /// Checks that a value of this name can be fed. @throws Error(invalid_argument) unless the main graph has an input or another value of
  /// this name.
  void expect_input(std::string_view name) const;
  /// Infers the shapes again on a new graph with the actual extents, to throw an error that names the node which rejects the feeds.
  /// Rethrows `error` if no node does.
  [[noreturn]] void explain(const Executable& executable, std::span<const Datum> feeds, const Error& error) const;
  /// Makes a graph of the model, upgraded and with the options' overrides. `edit` changes it before the upgrade.
  /// @param own_symbols  see Request::own_symbols
  std::unique_ptr<Graph> prepare(const std::function<void(Graph&)>& edit = {}, bool own_symbols = false) const;
  using CompiledSubgraphs = std::vector<std::shared_ptr<const plugin::Compiled>>;
  /// Optimizes a graph. @param for_file  true: use only operators that the file of an optimized model can hold.
  /// @param for_monitor  true: compile nothing with backends, since a monitor could not see values inside their subgraphs.
  /// @return subgraphs that the backends compiled; they must live until the program is made.
  CompiledSubgraphs optimize(Graph& graph, bool for_file = false, bool for_monitor = false) const;
  /// Returns the optimized model, to be written to a file.
  onnx::ModelDef optimized() const;
  struct FinishOptions {
    bool keep_constants = false;  ///< false: release constants of which only the packed copies are needed
    bool observable = false;
    bool for_file = false;                             ///< keep the constants that a file of the program needs
    const compiled::StoredStates* restored = nullptr;  ///< packed weights read from a file; null: none
  };
  std::shared_ptr<Executable> finish(std::shared_ptr<Graph> graph, const FinishOptions& finishing) const;
  /// Return what the session declares: the model's declarations with the extents that options fix. Outputs also have what inference knows
  /// of `graph`, the optimised graph.
  std::vector<ValueInfo> declared_inputs() const;
  std::vector<ValueInfo> declared_outputs(const Graph& graph) const;
  std::vector<ValueInfo> declared_initializers() const;
  /// Makes the main program and accounts for its memory.
  void make();
  /// Loads the main program from the model's compiled file or the cache; otherwise compiles it and, if the options ask for it, writes it to
  /// the cache or to the file that they name.
  std::shared_ptr<Executable> make_main() const;
  std::shared_ptr<Executable> load_main(const compiled::File& file) const;
  void write_main(const Executable& made, const std::string& path, const std::string& key) const;
  /// Reports a warning through options.on_warning, or to the log if that is not set.
  void warn(const std::string& text) const;

  void trim() const;  // frees the frames that no run uses
  MemoryReport memory_report() const;
  profile::ProfilePlan profile_plan(const Profiling& of) const override;
  CacheStatistics cache_statistics() const override;
  void name_as_onnxruntime(std::vector<ProfiledNode>& nodes) const override;

  Model model;
  std::vector<MemoryCharge> weight_charges;
  std::shared_ptr<const Executable> main;
  std::unordered_map<std::string, size_t> known_inputs;  // position of each input, and of each initializer that may be fed
  std::set<std::string> sparse_outputs;                  // outputs that the model declares sparse

  // Programs for other sets of feeds and fetches, the most recently used first.
  static constexpr size_t kMaxExecutables = 8;
  struct Entry {
    std::vector<std::string> fetches, fed, targets;  // compared as sets: their order does not matter
    bool all_constants = false, own_symbols = false;
    uint64_t monitor = 0;  // number of the monitor for which the program was compiled; 0: none
    struct Made {
      std::mutex mutex;  // locked while compiling: other requests for this program wait, requests for other programs do not
      std::shared_ptr<const Executable> executable;
    };
    std::shared_ptr<Made> made = std::make_shared<Made>();
  };
  /// Returns the entry for a request, which is added if there is none. Its program may not have been compiled yet.
  std::shared_ptr<Entry::Made> entry_for(const Request& request, uint64_t monitor) const;
  /// Returns all compiled programs, `main` first, without those that are still being compiled. @pre the caller holds `mutex`
  std::vector<std::shared_ptr<const Executable>> compiled_now() const;
  mutable std::mutex mutex;  // guards the programs in `others`
  mutable std::list<Entry> others;
  mutable CountedNodes kept_counters;     // counters of programs that were evicted
  mutable CacheStatistics kept_bindings;  // what the caches of bindings of those programs did
  mutable std::atomic<bool> warned_of_symbols{false};
  mutable std::atomic<int64_t> cache_hits{0}, cache_misses{0}, cache_evictions{0};

  mutable std::mutex stored_mutex;
  std::unordered_map<ValueHandle, Datum> stored;
  ValueHandle last_handle = 0;
};

/// Adds a program's counters to those kept for the same nodes.
void keep_counters(exec::Plans& plans, CountedNodes& kept);

/// Returns the results in the order of `fetches`; the program may have been compiled for the same names in another order.
std::vector<Datum> in_order_of(std::span<const std::string> fetches, const Executable& executable, std::vector<Datum> results);

}  // namespace treadle
