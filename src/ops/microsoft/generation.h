// The searches for the next tokens of com.microsoft, and what one step of them is made of.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/decomposition.h"

namespace treadle::ops {

std::vector<OpDef> generation_steps_ops();  // of the domain treadle

enum class Search : uint8_t { greedy, sampling, beam };

/// Where an operator has its inputs; -1 for those that it lacks.
struct SearchInputs {
  int beams = -1, returned = -1, length_penalty = -1, penalty = 3, vocab_mask = 4, prefix_mask = 5, attention_mask = 6, presence_mask = -1,
      seed = -1, decoder_ids = -1, processor = -1, temperature = -1;
};

/// Writes the search as a Loop around its decoder.
void write_search(Decomposition& d, Search search, const SearchInputs& inputs);

}  // namespace treadle::ops
