// What a Session holds: the optimised graph, its program, and programs for other sets of feeds and fetches.
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
#include "core/allocation.h"
#include "core/node_counters.h"
#include "core/thread_pool.h"
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

/// What a run wants, apart from the elements: a program is compiled for each such set of names.
struct Request {
  std::span<const std::string> fetches;  ///< empty: all outputs, or none if there are targets
  std::span<const std::string> fed;      ///< values that are fed though they are no inputs: initializers and computed ones
  std::span<const std::string> targets;  ///< computed but not fetched: nodes or values
  bool all_constants = false;            ///< weights that kernels have packed are kept, for those who look at a node's inputs
  bool own_symbols = false;              ///< each extent of an input is a symbol of its own: needs_own_symbols()
};

/// What a run is fed, by name: the caller's values, the parameters of its adapters, and what its client adds.
class RunFeeds {
 public:
  using Given = std::map<std::string, Datum>;
  /// @param given    outlives this
  /// @param options  may be null. @throws Error(invalid_argument) for a parameter of an adapter that is fed already
  RunFeeds(const Given& given, const RunOptions* options);
  RunFeeds(const RunFeeds&) = delete;
  RunFeeds& operator=(const RunFeeds&) = delete;
  /// @param value  outlives this: a state that had two owners could not grow in place
  /// @return false if the name is fed already
  bool add(const std::string& name, const Datum& value) { return !given_.contains(name) && added_.emplace(name, &value).second; }
  /// Null: it is not fed.
  const Datum* find(const std::string& name) const;
  /// The names for which `wanted` holds.
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
  std::list<Datum> of_adapters_;  // which added_ points into
  std::map<std::string, const Datum*> added_;
};

/// What a run executes.
struct ChosenProgram {
  std::shared_ptr<const Monitor> monitor;  ///< the session's, which the program was made for; null: none
  std::shared_ptr<const Executable> executable;
  std::vector<Datum> feeds;  ///< in the order of the executable's inputs
  bool compiled = false;     ///< it was made for this run
};

/// A model in the surroundings that its runs have.
struct Session::Impl : Runtime {
  Impl(const Model& model, const SessionOptions& options);
  ~Impl();

  /// The program for a request; `*compiled` tells whether it was made for this call.
  std::shared_ptr<const Executable> executable(const Request& request, const Monitor* monitor, bool* compiled = nullptr) const;
  struct Wanted {
    std::span<const std::string> outputs;    ///< as Request::fetches
    const RunOptions* options = nullptr;     ///< its targets are computed too; may be null
    std::span<const std::string> kept = {};  ///< further targets
    bool takes_feeds_later = false;          ///< feeds that are missing stay undefined
  };
  /// The program for what a run wants and is fed. Feeds that contradict the model's symbols have one without them, the first time with a
  /// warning. @throws Error(invalid_argument) for an input that is missing, or a name that the model does not have
  ChosenProgram choose_program(const Wanted& wanted, const RunFeeds& feeds) const;
  /// True if feeds, in the order of the executable's inputs, contradict the model's symbols and may do so.
  bool needs_own_symbols(const Executable& executable, std::span<const Datum> feeds) const;
  std::shared_ptr<const Executable> compile(const Request& request, const Monitor* monitor) const;
  std::shared_ptr<const Executable> make_further(const Request& request, const Monitor* monitor) const;
  std::unique_ptr<Graph> types_of_fed(const Request& request) const;
  /// True for an initializer or computed value, which the main program does not take.
  bool is_fed_apart(const std::string& name) const {
    auto found = known_inputs.find(name);
    return found == known_inputs.end() || found->second >= main->input_names.size();
  }
  /// @throws Error(invalid_argument) unless the main graph has an input or other value of this name.
  void expect_input(std::string_view name) const;
  /// Names the node that cannot take the feeds' shapes: inference again, on a fresh graph, with the real extents.
  [[noreturn]] void explain(const Executable& executable, std::span<const Datum> feeds, const Error& error) const;
  /// A graph of the model, upgraded and with the options' overrides; `edit` changes it as it is written, before the upgrade.
  /// @param own_symbols  as in Request
  std::unique_ptr<Graph> prepare(const std::function<void(Graph&)>& edit = {}, bool own_symbols = false) const;
  using CompiledSubgraphs = std::vector<std::shared_ptr<const plugin::Compiled>>;
  /// @param for_file     only operators that a file may hold.
  /// @param for_monitor  nodes stay where a monitor sees them: backends get none.
  /// @return what the backends compiled; must live until the program is made.
  CompiledSubgraphs optimise(Graph& graph, bool for_file = false, bool for_monitor = false) const;
  /// What the optimiser makes of the model, for a file.
  onnx::ModelDef optimized() const;
  struct FinishOptions {
    bool keep_constants = false;  ///< false: those that nobody but their packed copies needs are let go
    bool observable = false;
    bool for_file = false;                             ///< constants stay that a file of the program would need
    const compiled::StoredStates* restored = nullptr;  ///< what a file has packed
  };
  std::shared_ptr<Executable> finish(std::shared_ptr<Graph> graph, const FinishOptions& finishing) const;
  /// The main program, and what it holds beside its own memory.
  void make();
  /// The main program: from the model's own file or the cache, if it is there, or made and, where the options ask for it, written.
  std::shared_ptr<Executable> make_main() const;
  std::shared_ptr<Executable> load_main(const compiled::File& file) const;
  void write_main(const Executable& made, const std::string& path, const std::string& key) const;
  /// What a session has to say that is no error.
  void warn(const std::string& text) const;

  void trim() const;  // frames that no run uses
  MemoryReport memory_report() const;
  profile::ProfilePlan profile_plan(const Profiling& of) const override;

  Model model;
  std::vector<MemoryCharge> weight_charges;
  std::shared_ptr<const Executable> main;
  std::unordered_map<std::string, size_t> known_inputs;  // inputs and overridable initializers
  std::set<std::string> sparse_outputs;                  // that the model declares so

  // Other sets of feeds and fetches, most recent first.
  static constexpr size_t kMaxExecutables = 8;
  struct Entry {
    std::vector<std::string> fetches, fed, targets;  // sets: in any order
    bool all_constants = false, own_symbols = false;
    uint64_t monitor = 0;  // the number of the monitor that it was compiled for; 0: none
    struct Made {
      std::mutex mutex;  // while compiling: who wants the same waits, others do not
      std::shared_ptr<const Executable> executable;
    };
    std::shared_ptr<Made> made = std::make_shared<Made>();
  };
  /// The entry for a request, made if there is none: what it holds may still be compiled, or to be compiled.
  std::shared_ptr<Entry::Made> entry_for(const Request& request, uint64_t monitor) const;
  /// All that have been compiled, `main` first; not those under way. @pre the caller has `mutex`.
  std::vector<std::shared_ptr<const Executable>> compiled_now() const;
  mutable std::mutex mutex;  // of the list
  mutable std::list<Entry> others;
  mutable CountedNodes kept_counters;  // of those that went
  mutable std::atomic<bool> warned_of_symbols{false};
  mutable std::atomic<int64_t> cache_hits{0}, cache_misses{0}, cache_evictions{0};

  mutable std::mutex stored_mutex;
  std::unordered_map<ValueHandle, Datum> stored;
  ValueHandle last_handle = 0;
};

/// Adds what the program's counters have to those of the same nodes.
void keep_counters(exec::Plans& plans, CountedNodes& kept);

/// What was fetched, in the order of a request whose program was compiled for the same names in any order.
std::vector<Datum> in_order_of(std::span<const std::string> fetches, const Executable& executable, std::vector<Datum> results);

}  // namespace treadle
