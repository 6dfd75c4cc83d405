#include "passes/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <span>

#include "core/base/verify_switch.h"
#include "core/trace/load_phases.h"
#include "core/values/allocation.h"
#include "graph/dead_nodes.h"
#include "graph/infer.h"
#include "passes/captured_constants.h"
#include "passes/list.h"
#include "passes/trace.h"
#include "passes/whole_graph.h"
#include "treadle/error.h"
#include "treadle/out_of_memory.h"

namespace treadle::passes {
namespace {

// The pass that partitions the graph for backends. Not in the list of passes, because the caller supplies its function.
constexpr PassInfo kBackends{"backends", kBasic, kAlways, "subgraphs that backends compile -> Subgraph"};

/// The passes of list.h by stage.
struct Stages {
#define TREADLE_LISTED(pass) pass(),
  std::vector<Pass> rounds{TREADLE_PASSES_ROUNDS(TREADLE_LISTED)}, fusions{TREADLE_PASSES_FUSIONS(TREADLE_LISTED)},
      layout{TREADLE_PASSES_LAYOUT(TREADLE_LISTED)}, after_layout{TREADLE_PASSES_AFTER_LAYOUT(TREADLE_LISTED)},
      last{TREADLE_PASSES_LAST(TREADLE_LISTED)};
#undef TREADLE_LISTED
};
const Stages& stages() {
  static const Stages kStages;
  return kStages;
}

std::atomic<bool>& verifies_all() {
  static std::atomic<bool> on = verifies_by_default("TREADLE_VERIFY_PASSES");
  return on;
}

class Pipeline {
 public:
  Pipeline(Graph& graph, const PipelineOptions& options)
      : graph_(graph),
        context_{options, FoldLimits::of(graph)},
        left_(options.max_patches),
        verifies_(options.verify || verifies_passes()) {
    context_.fold_limits.max_bytes_each = options.max_folded_bytes;
    context_.fold_limits.keep_quantization = true;
  }

  void run() {
    // After two rounds, nearly no model changes any more; a sixth round would cost more load time than it gains. Weights stay quantized
    // until all rules have seen them.
    constexpr int kMaxRounds = 5;
    const PipelineOptions& options = context_.options;
    for (int round = 0; round < kMaxRounds && left_ > 0; ++round) {
      int64_t before = left_;
      apply_round();
      const bool has_folded_weights = context_.fold_limits.keep_quantization == options.keep_quantization;
      if (left_ == before && has_folded_weights) break;
      if (!has_folded_weights) set_keep_quantization(options.keep_quantization);
      // Infers again, because values that have become constants make more shapes known.
      infer_again();
    }
    if (options.before_fusion && left_ > 0) timed(kBackends, [&] { return options.before_fusion(graph_, left_); });
    apply(stages().fusions);
    settle_layout();
    apply(stages().last);
    release_unused_constants(graph_);
  }

 private:
  void settle_layout() {
    const int64_t before = left_;
    apply(stages().layout);
    if (left_ == before) return;
    // Needed because new Transposes may meet Transposes of the model, and because computed axes have become constants.
    apply_round();
    apply(stages().after_layout);
    infer_again();
  }

  // A pass that has found nothing to change is skipped until something else changes the graph.
  void apply_round() {
    for (size_t i = 0; i < settled_at_.size(); ++i) {
      if (settled_at_[i] == version_) continue;
      apply(stages().rounds[i]);
      settled_at_[i] = found_nothing_ ? version_ : -1;
    }
  }

  // Only passes over whole graphs depend on the limits of folding, so only they must run again.
  void set_keep_quantization(bool keep) {
    context_.fold_limits.keep_quantization = keep;
    for (size_t i = 0; i < settled_at_.size(); ++i)
      if (stages().rounds[i].run) settled_at_[i] = -1;
  }

  void infer_again() {
    if (inferred_at_ == version_) return;
    const LoadPhases::Phase phase("inference");
    version_ += infer(graph_, {.warn = context_.options.warn}) ? 1 : 0;
    inferred_at_ = version_;
  }

  bool is_active(const PassInfo& info) const {
    const PipelineOptions& options = context_.options;
    const PassConditions& conditions = info.conditions;
    if (info.level > options.level) return false;
    if (options.weights_change && conditions.frozen_weights) return false;
    if (options.weights_change && conditions.packed_weights && !options.weights_packed) return false;
    if (options.before_autodiff && conditions.not_before_autodiff) return false;
    if (options.for_file && conditions.only_in_memory) return false;
    if (!options.keep_patterns && conditions.for_patterns) return false;
    if (options.keep_patterns && (info.level > kBasic || conditions.hides_patterns)) return false;
    if (options.keep_quantization && conditions.removes_quantization) return false;
    if (!options.precision.empty() && conditions.only_float32) return false;
    if (options.device ? !suits(info, *options.device) : conditions.only_on_devices) return false;
    return left_ > 0 && std::find(options.skip.begin(), options.skip.end(), info.name) == options.skip.end();
  }

  static bool suits(const PassInfo& info, const DeviceForms& device) {
    if (info.level > device.level() || info.conditions.for_host) return false;
    for (std::string_view rest = info.conditions.makes; !rest.empty();) {
      const size_t end = std::min(rest.find(' '), rest.size());
      if (!device.has(rest.substr(0, end))) return false;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return true;
  }

  void apply(std::span<const Pass> passes) {
    for (const Pass& pass : passes) apply(pass);
  }
  void apply(const Pass& pass) {
    found_nothing_ = true;
    if (!is_active(pass.info)) return;
    timed(pass.info, [&] { return passes::apply(pass, graph_, context_, left_); });
  }

  template <typename Fn>
  void timed(const PassInfo& info, Fn&& fn) {
    size_t nodes = graph_.num_nodes();
    PassTrace* trace = PassTrace::current();
    if (trace) trace->begin(info.name, graph_);
    const std::string before = verifies_ ? print(graph_) : "";
    const bool is_told = trace || context_.options.log;
    const auto now = [&] { return is_told ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point(); };
    const auto start = now();
    int64_t count = 0;
    const size_t allocated_bytes = AllocationScope::allocated_bytes();
    try {
      const LoadPhases::Phase phase(info.name);
      count = fn();
    } catch (OutOfMemory& error) {
      error.add_context(fmt::format("while the pass {} ran", info.name));
      error.set_remedy(fmt::format("with disabled_passes={}, the {} bytes are not made that it has allocated so far", info.name,
                                   AllocationScope::allocated_bytes() - allocated_bytes));
      throw;
    }
    const auto elapsed = std::chrono::duration_cast<std::chrono::microseconds>(now() - start);
    left_ -= std::min(left_, count);
    version_ += count > 0 ? 1 : 0;
    found_nothing_ = count == 0;
    if (trace) trace->end(graph_, count, elapsed.count());
    if (verifies_) check(info, count, before);
    if (count > 0 && context_.options.log)
      context_.options.log(info.name, fmt::format("{} changes, {} -> {} nodes", count, nodes, graph_.num_nodes()), elapsed.count());
  }

  void check(const PassInfo& info, int64_t count, const std::string& before) const {
    try {
      verify(graph_);
    } catch (Error& error) {
      error.add_context(fmt::format("after the pass {}", info.name));
      throw;
    }
    if (count == 0 && print(graph_) != before)
      throw Error(ErrorCode::internal, fmt::format("{} counts no change, and made one", info.name));
  }

  Graph& graph_;
  PassContext context_;
  int64_t left_;
  const bool verifies_;
  int64_t version_ = 0;  // version of the graph; every change increases it
  std::vector<int64_t> settled_at_ =
      std::vector<int64_t>(stages().rounds.size(), -1);  // for each pass: the version of the graph in which it found nothing to change
  int64_t inferred_at_ = -1;
  bool found_nothing_ = false;  // true if the last pass found nothing to change
};

}  // namespace

bool verifies_passes() { return verifies_all(); }
void set_verifies_passes(bool on) { verifies_all() = on; }

int64_t apply(const Pass& pass, Graph& graph, PassContext& context, int64_t limit) {
  if (pass.run) return pass.run(graph, context, limit);
  std::unique_ptr<Rule> rules[] = {pass.rule(context.options)};
  return apply_rules(graph, rules, {.max_patches = limit, .num_visits = context.options.num_visits});
}

Pass rule_pass(std::unique_ptr<Rule> (*make)(const PipelineOptions&), Level level, const PassConditions& conditions,
               std::string_view description) {
  return {{make({})->name(), level, conditions, description}, make, nullptr};
}

Pass remove_dead() {
  return graph_pass("remove-dead", kBasic, kAlways, "nodes and captures that nothing reads go",
                    [](Graph& graph, PassContext&, int64_t limit) { return remove_dead_nodes(graph, limit); });
}

void canonicalize(Graph& graph) {
  if (copy_captured_constants(graph) > 0) infer(graph);
}

void optimize(Graph& graph, const PipelineOptions& options) {
  canonicalize(graph);
  Pipeline(graph, options).run();
  canonicalize(graph);
}

std::vector<PassInfo> list_passes() {
  std::vector<PassInfo> list;
  for (const auto* stage : {&stages().rounds, &stages().fusions, &stages().layout, &stages().after_layout, &stages().last})
    for (const Pass& pass : *stage) list.push_back(pass.info);
  return list;
}

}  // namespace treadle::passes
