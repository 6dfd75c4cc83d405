// Replaces the graph optimizer in a reduced library without one. Its graphs run unchanged.
#include "graph/infer.h"
#include "passes/captured_constants.h"
#include "passes/conv_choice.h"
#include "passes/infer_storage.h"
#include "passes/pipeline.h"
#include "passes/trace.h"
#include "treadle/error.h"

namespace treadle::passes {
namespace {

[[noreturn]] void throw_missing(const char* what) {
  throw Error(ErrorCode::not_implemented, std::string(what) + ": this is a build for training from artifacts, which has no optimiser");
}

}  // namespace

thread_local constinit PassTrace* PassTrace::current_ = nullptr;

std::vector<std::string> PassTrace::passes_of(const std::vector<std::string>&) const { return {}; }

void canonicalize(Graph& graph) {
  if (copy_captured_constants(graph) > 0) infer(graph);
}
void optimize(Graph& graph, const PipelineOptions& options) {
  if (!options.precision.empty()) throw_missing("precision");
  if (!options.conv_choice.empty()) throw_missing("conv_rates and max_weight_expansion");
  if (options.before_fusion) options.before_fusion(graph, options.max_patches);
  canonicalize(graph);
}
std::vector<PassInfo> list_passes() { return {}; }
std::vector<float> read_conv_rates(const std::string&) { throw_missing("conv_rates"); }
std::map<std::string, std::string> parse_storage(const std::string&) { throw_missing("treadle.storage"); }
std::map<ValueId, StorageType> infer_storage(Graph&, const std::map<std::string, std::string>&,
                                             const std::function<void(const std::string&)>&) {
  throw_missing("treadle.storage");
}

}  // namespace treadle::passes
