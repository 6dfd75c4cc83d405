#include "session/intermediate.h"

#include <set>

#include "exec/program/program.h"
#include "exec/run/executor.h"
#include "onnx/import.h"
#include "passes/pipeline.h"
#include "session/model.h"
#include "treadle/error.h"

namespace treadle {

std::vector<std::pair<std::string, Datum>> run_intermediates(const Model& model, const std::map<std::string, Datum>& feeds) {
  std::shared_ptr<Graph> graph = model.impl().import();
  std::set<std::string> written;
  for (NodeId id : graph->order())
    for (ValueId output : graph->node(id).outputs)
      if (output != kNoValue) written.insert(graph->value(output).name);
  onnx::upgrade(*graph);
  passes::canonicalize(*graph);
  graph->outputs.clear();
  graph->output_names.clear();
  for (NodeId id : graph->order())
    for (ValueId output : graph->node(id).outputs) {
      if (output == kNoValue || !written.contains(graph->value(output).name)) continue;
      graph->outputs.push_back(output);
      graph->output_names.push_back(graph->value(output).name);
    }
  exec::Program program(graph);
  std::vector<Datum> arranged, results(graph->outputs.size());
  for (ValueId input : graph->inputs) {
    auto found = feeds.find(graph->value(input).name);
    if (found == feeds.end()) throw Error(ErrorCode::invalid_argument, "the input \"" + graph->value(input).name + "\" is missing");
    arranged.push_back(found->second);
  }
  exec::make_host_executor(program)->run(arranged, results, {});
  std::vector<std::pair<std::string, Datum>> named;
  for (size_t i = 0; i < results.size(); ++i) named.emplace_back(graph->output_names[i], std::move(results[i]));
  return named;
}

}  // namespace treadle
