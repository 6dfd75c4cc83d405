// Runs a case of the sweep in three ways: as a model through importer, optimiser and executor, and node by node in fenced memory.
#pragma once

#include <string>

#include "tests/fuzz/sweep_case.h"

namespace treadle::fuzz {

enum class Outcome : uint8_t { ran, refused, failed };

struct Verdict {
  Outcome outcome = Outcome::ran;
  std::string text;  ///< the text of the error
};

/// Limits the calling process's memory, so that huge sizes in a case give errors instead of filling the machine.
void limit_memory();

/// Runs the case, and returns unless the process crashes. The case fails if an error has code `internal` or is not one of the library's.
Verdict run_case(const SweepCase& c);

}  // namespace treadle::fuzz
