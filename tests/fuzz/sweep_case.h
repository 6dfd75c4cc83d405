// Random cases of one operator; most are within its contract, some are not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/op_def.h"

namespace treadle::fuzz {

/// What the graph knows about an operand before the run.
enum class Knowledge : uint8_t { constant, shape, symbols, rank_unknown };

struct SweepOperand {
  Datum value;  // undefined if the operand is absent
  Knowledge knowledge = Knowledge::shape;
};

struct SweepCase {
  const OpDef* op = nullptr;
  int version = 0;
  std::vector<SweepOperand> inputs;
  std::vector<bool> outputs;  // false for an output that is absent
  Attributes attributes;
  std::vector<std::string> bodies;  // names of graph attributes
  bool optimized = false;           // true if all passes run before lowering
};

/// Returns the case for a seed. Its operator is one of `ops`.
SweepCase make_case(uint64_t seed, const std::vector<const OpDef*>& ops);

/// Formats a case as text, with a line for each operand and attribute.
std::string to_string(const SweepCase& c);

}  // namespace treadle::fuzz
