#include "session/refusals.h"

#include <fmt/format.h>

#include <algorithm>

#include "session/options.h"
#include "treadle/error.h"

namespace treadle {
namespace {

constexpr std::string_view kTraining = "training";

constexpr std::string_view kArtifacts = "training from artifacts";

constexpr std::string_view kDevices = "execution on devices", kParallel = "parallel execution";

constexpr Refusal kRefusals[] = {
    {kDevices, "memory_fraction", "memory_limit_bytes limits a device's memory"},
    {kDevices, "recompute_fraction", "memory_limit_bytes limits a device's memory"},
    {kDevices, "early_updates", "streams keep no order of updates"},
    {kParallel, "recompute_fraction", "values are computed again in the program's order"},
    {kParallel, "early_updates", "updates are put in the program's order"},
    {"a device without a bus", "memory_limit_bytes", "what it has no room for cannot stay with the host"},
    {"a device with kernels of its own", "precision", "its kernels compute in the model's dtypes: convert the model"},
    {"a device with memory of its own", "allocator", "what lies there comes from the device"},
    {"a partial run", "fetches of other values", "its outputs can be fetched, and what RunOptions::targets names"},
    {kTraining, "feeds of inner values", "make the value an input of the model"},
    {kTraining, "Yields", "run the model as a partial run"},
    {kTraining, "adapters", "train the model with the adapter merged in"},
    {kTraining, "targets", "watch the value with a monitor, or choose it as an output"},
    {kTraining, "output_allocators", "use the option allocator, which serves all memory of a trainer or module"},
    {kTraining, "output_devices", "to_device() copies what came out"},
    {kTraining, "optimized_model_filepath", "save() writes the model with its parameters"},
    {kTraining, "compiled_model_filepath", "compiled models have frozen weights"},
    {kTraining, "cache_dir", "compiled models have frozen weights"},
    {kTraining, "precision of int8_weights", "train in bfloat16, bfloat16x3 or float16, and quantise what is saved"},
    {kTraining, "precision without optimisations", "ask for a graph_optimization_level of extended or more: a pass assigns it"},
    {kTraining, "free_dimension_overrides", "change the model's inputs"},
    {kTraining, "denotation_overrides", "change the model's inputs"},
    {kTraining, "initializers", "change the model's initializers, or load a checkpoint"},
    {kTraining, "conv_rates", "convolutions whose weights change choose their way in the run"},
    {kTraining, "treadle.backends", "backends take graphs with frozen weights"},
    {kArtifacts, "graph_optimization_level", "graphs in artifacts are optimised already: give it to the trainer that writes them"},
    {kArtifacts, "disabled_passes", "give them to the trainer that writes the artifacts"},
    {kArtifacts, "max_patches", "give it to the trainer that writes the artifacts"},
    {kArtifacts, "max_weight_expansion", "give it to the trainer that writes the artifacts"},
    {kArtifacts, "precision", "give it to the trainer that writes the artifacts"},
    {kArtifacts, "treadle.storage", "give it to the trainer that writes the artifacts"},
    {kArtifacts, "gradients", "step() follows them; make a trainer of the model to see them"},
};

}  // namespace

std::span<const Refusal> refusals() { return kRefusals; }

std::string Refusal::message() const { return fmt::format("{} has no {}: {}", where, what, instead); }

void refuse(std::string_view where, std::string_view what, std::string_view name) {
  const auto found =
      std::find_if(std::begin(kRefusals), std::end(kRefusals), [&](const Refusal& r) { return r.where == where && r.what == what; });
  if (found == std::end(kRefusals)) throw Error(ErrorCode::internal, fmt::format("no words for {} in {}", what, where));
  throw Error(ErrorCode::invalid_argument, name.empty() ? found->message() : fmt::format("\"{}\": {}", name, found->message()));
}

void refuse_set(std::string_view where, const SessionOptions& options) {
  const SessionOptions defaults;
  for (const Refusal& refusal : kRefusals) {
    if (refusal.where != where) continue;
    for (const Option<SessionOptions>& row : session_option_table().rows())
      if ((row.name == refusal.what || row.key == refusal.what) && row.is_set(options, defaults)) refuse(where, refusal.what);
  }
}

std::string refusals_markdown() {
  std::string text = "| not in | what | instead |\n|---|---|---|\n";
  for (const Refusal& refusal : kRefusals) text += fmt::format("| {} | `{}` | {} |\n", refusal.where, refusal.what, refusal.instead);
  return text;
}

}  // namespace treadle
