// Which way convolutions may go: the session's options `max_weight_expansion` and `conv_rates`.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace treadle::passes {

struct ConvChoiceRules {
  double max_weight_expansion = std::numeric_limits<double>::infinity();
  std::vector<float> rates;  ///< as kernels::ConvRates has them; empty: those that are built in

  bool empty() const { return max_weight_expansion == std::numeric_limits<double>::infinity() && rates.empty(); }
};

/// The rates of a file that `bench_conv --calibrate` wrote: a name and a number a line. @throws Error(invalid_argument) that quotes what is
/// wrong, and what map_file throws.
std::vector<float> read_conv_rates(const std::string& path);
/// The same of its text.
std::vector<float> parse_conv_rates(const std::string& text);

/// NhwcConv nodes that Winograd's way could take, and their gradients, get the rules as attributes. Returns how many. Bodies included.
int64_t assign_conv_choice(Graph& graph, const ConvChoiceRules& rules, int64_t limit);

}  // namespace treadle::passes
