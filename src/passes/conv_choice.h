// Rules for the choice of convolution methods: the session options `max_weight_expansion` and `conv_rates`.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace treadle::passes {

struct ConvChoiceRules {
  double max_weight_expansion = std::numeric_limits<double>::infinity();
  std::vector<float> rates;  ///< in the order of the members of kernels::ConvRates; empty: the built-in rates

  bool empty() const { return max_weight_expansion == std::numeric_limits<double>::infinity() && rates.empty(); }
};

/// Reads the rates from a file that `bench_conv --calibrate` has written: one name and number per line. @throws Error(invalid_argument)
/// that quotes the invalid text; also the errors of map_file
std::vector<float> read_conv_rates(const std::string& path);
/// Parses the rates from the text of such a file.
std::vector<float> parse_conv_rates(const std::string& text);

/// Sets the rules as attributes on NhwcConv nodes that could use Winograd's method, and on the gradients of such nodes, including those in
/// bodies. Returns the number of nodes.
int64_t assign_conv_choice(Graph& graph, const ConvChoiceRules& rules, int64_t limit);

}  // namespace treadle::passes
