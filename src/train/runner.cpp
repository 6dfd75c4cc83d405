#include "train/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "treadle/error.h"

namespace treadle::train {

Runner::Runner(const Runtime& runtime, std::unique_ptr<Graph> graph, const std::vector<const NamedTensors*>& kept) {
  auto made = std::make_shared<Executable>();
  made->graph = std::move(graph);
  made->program = std::make_unique<exec::Program>(made->graph, runtime.program_options());
  made->output_names = made->graph->output_names;
  made->num_fetched = made->output_names.size();
  made->id = next_graph_id();
  for (ValueId input : made->graph->inputs) {
    made->input_names.push_back(made->graph->value(input).name);
    kept_.emplace_back();
    for (const NamedTensors* tensors : kept)
      if (auto found = tensors->find(made->input_names.back()); found != tensors->end()) kept_.back() = found->second;
    if (!kept_.back().defined()) fed_names_.push_back(made->input_names.back());
  }
  if (runtime.recorder) made->program->name_records(*runtime.recorder);
  made->executor = runtime.make_executor(*made->program);
  executable_ = std::move(made);
}

std::vector<Datum> Runner::arrange(const Feeds& feeds, const Datum& labels) const {
  const std::vector<std::string>& names = executable_->input_names;
  std::vector<Datum> arranged = kept_;
  for (size_t i = 0; i < names.size(); ++i) {
    if (arranged[i].defined()) continue;
    if (names[i] == kLabels) {
      if (!labels.defined() || !labels.tensor().defined())
        throw Error(ErrorCode::invalid_argument, "the loss has labels, and none are given");
      arranged[i] = labels;
    } else if (auto found = feeds.find(names[i]); found != feeds.end()) {
      arranged[i] = found->second;
    } else {
      throw Error(ErrorCode::invalid_argument, fmt::format("the input \"{}\" is missing", names[i]));
    }
  }
  return arranged;
}

std::vector<Datum> Runner::arrange_in_order(std::vector<Datum> fed) const {
  if (fed.size() != fed_names_.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("{} values are fed; there are {} inputs", fed.size(), fed_names_.size()));
  if (fed.size() == kept_.size()) return fed;
  std::vector<Datum> arranged = kept_;
  size_t next = 0;
  for (Datum& datum : arranged)
    if (!datum.defined()) datum = std::move(fed[next++]);
  return arranged;
}

void check_session_options(const SessionOptions& options) {
  const std::pair<bool, const char*> refused[] = {
      {!options.optimized_model_filepath.empty(), "optimized_model_filepath"},
      {!options.compiled_model_filepath.empty(), "compiled_model_filepath"},
      {!options.cache_dir.empty(), "cache_dir"},
      {!options.precision.empty(), "precision"},
      {!options.free_dimension_overrides.empty(), "free_dimension_overrides"},
      {!options.denotation_overrides.empty(), "denotation_overrides"},
      {!options.initializers.empty(), "initializers"},
      {!options.conv_rates.empty(), "conv_rates"},
      {options.config.contains("treadle.backends"), "treadle.backends"},
      {options.config.contains("treadle.storage"), "treadle.storage"},
  };
  for (const auto& [is_set, name] : refused)
    if (is_set) throw Error(ErrorCode::invalid_argument, fmt::format("the option {} has no meaning in training", name));
}

void check_run_options(const RunOptions* options) {
  if (!options) return;
  if (!options->adapters.empty()) throw Error(ErrorCode::invalid_argument, "a run of a training graph has no adapters");
  if (!options->targets.empty()) throw Error(ErrorCode::invalid_argument, "a run of a training graph has no targets");
  if (!options->output_allocators.empty())
    throw Error(ErrorCode::invalid_argument, "a run of a training graph has no allocators of outputs");
}

}  // namespace treadle::train
