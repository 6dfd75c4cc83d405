#include "passes/conv_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "core/files/file.h"
#include "graph/rewriter.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "treadle/error.h"

namespace treadle::passes {
namespace {

// Names of the rates, in the order of the members of kernels::ConvRates.
constexpr std::array<std::string_view, 5> kNames = {"direct", "winograd", "transforms", "cached", "memory"};

// Returns true for convolutions for which several methods exist: those with a 3x3 window and, in training, their gradients with respect to
// the input and to the weights (for the latter, the output has the window's shape).
bool has_window_of_3(const Graph& graph, const Node& node) {
  if (!has_internal_attribute(node, "rates")) return false;
  const std::optional<size_t> operand = input_named(node, "W");
  const Type& weights = graph.type(operand ? node.inputs[*operand] : node.outputs[0]);
  return weights.has_rank() && weights.rank() == 4 && (*weights.shape)[2].is_const(3) && (*weights.shape)[3].is_const(3) &&
         node.attributes.get_int("group", 1) == 1;
}

}  // namespace

std::vector<float> parse_conv_rates(const std::string& text) {
  std::vector<float> rates(kNames.size(), 0);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name, rest;
    float number = 0;
    const bool is_rate = static_cast<bool>(words >> name >> number) && !(words >> rest) && std::isfinite(number) && number > 0;
    const auto* found = std::find(kNames.begin(), kNames.end(), name);
    if (!is_rate || found == kNames.end())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("conv_rates: \"{}\" is given, a rate's name and a number above 0 are expected", line));
    rates[static_cast<size_t>(found - kNames.begin())] = number;
  }
  for (size_t i = 0; i < rates.size(); ++i)
    if (rates[i] == 0) throw Error(ErrorCode::invalid_argument, fmt::format("conv_rates: \"{}\" is missing", kNames[i]));
  return rates;
}

std::vector<float> read_conv_rates(const std::string& path) {
  const std::shared_ptr<Storage> file = read_file(path);
  return parse_conv_rates(std::string(reinterpret_cast<const char*>(file->data()), file->size_bytes()));
}

int64_t assign_conv_choice(Graph& graph, const ConvChoiceRules& rules, int64_t limit) {
  return Rewriter(graph, limit).for_each_graph([&](Rewriter& inside) {
    for (NodeId id : inside.graph().order()) {
      Node& node = inside.graph().node(id);
      if (!has_window_of_3(inside.graph(), node)) continue;
      inside.change([&] {
        if (std::isfinite(rules.max_weight_expansion))
          node.attributes.set("max_weight_expansion", static_cast<float>(rules.max_weight_expansion));
        if (!rules.rates.empty()) node.attributes.set("rates", rules.rates);
        return true;
      });
    }
  });
}

Pass assign_conv_choice() {
  return graph_pass("assign-conv-choice", kLayout, {.not_before_autodiff = true, .only_in_memory = true, .for_host = true},
                    "which ways convolutions may go, where the session says", [](Graph& graph, PassContext& context, int64_t limit) {
                      return context.options.conv_choice.empty() ? 0 : assign_conv_choice(graph, context.options.conv_choice, limit);
                    });
}

}  // namespace treadle::passes
