// Declares the token searches (text generation) of com.microsoft, and the operators that together compute one step of a search.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/decomposition.h"

namespace treadle::ops {

std::vector<OpDef> generation_steps_ops();  // operators of the treadle domain

enum class Search : uint8_t { greedy, sampling, beam };

/// The indices of an operator's inputs; -1 for an input that the operator does not have.
struct SearchInputs {
  int beams = -1, returned = -1, length_penalty = -1, penalty = 3, vocab_mask = 4, prefix_mask = 5, attention_mask = 6, presence_mask = -1,
      seed = -1, decoder_ids = -1, processor = -1, temperature = -1;
};

/// Replaces a search operator by a Loop around its decoder's graph. Operators of generation_steps_ops() compute each step of the search.
void write_search(Decomposition& d, Search search, const SearchInputs& inputs);

}  // namespace treadle::ops
