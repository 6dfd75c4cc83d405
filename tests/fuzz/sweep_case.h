// Random cases of one operator, most of them within its contract and some beyond it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/op_def.h"

namespace treadle::fuzz {

/// How much of an operand the graph knows before the run.
enum class Knowledge : uint8_t { constant, shape, symbols, rank_unknown };

struct SweepOperand {
  Datum value;  // undefined: left out
  Knowledge knowledge = Knowledge::shape;
};

struct SweepCase {
  const OpDef* op = nullptr;
  int version = 0;
  std::vector<SweepOperand> inputs;
  std::vector<bool> outputs;  // false: left out
  Attributes attributes;
  std::vector<std::string> bodies;  // names of graph attributes
  bool optimised = false;           // by all passes, rather than lowered as it is
};

/// The case of a seed: its operator is one of `ops`.
SweepCase make_case(uint64_t seed, const std::vector<const OpDef*>& ops);

/// One line an operand and attribute.
std::string to_string(const SweepCase& c);

}  // namespace treadle::fuzz
