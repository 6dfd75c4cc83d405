// Runs a case of the sweep: as an importer, an optimiser and an executor see it, and node by node in fenced memory.
#pragma once

#include <string>

#include "tests/fuzz/sweep_case.h"

namespace treadle::fuzz {

enum class Outcome : uint8_t { ran, refused, failed };

struct Verdict {
  Outcome outcome = Outcome::ran;
  std::string text;  ///< of an error
};

/// Of the calling process, from now on: sizes that a case asks for end in errors, not in a full machine.
void limit_memory();

/// Whatever the case does, short of ending the process. It failed if an error is one of the library's own faults (`internal`), or none of
/// its errors.
Verdict run_case(const SweepCase& c);

}  // namespace treadle::fuzz
