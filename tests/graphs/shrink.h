// Shrinks failing cases: removes all parts without which they still fail.
#pragma once

#include <string>

#include "tests/graphs/settings.h"

namespace treadle::graphs {

/// Judges and runs the case in a separate process, so that a crash or an endless run is an ordinary result.
/// @return empty if all is well; "wrong: …", "error CODE: …", "crash: …", "hang: …"; or "invalid: …" if the case breaks ONNX's rules.
std::string run_apart(const Case& c, const Setting& setting);

/// Returns the part of a failure's text that is the same for all failures of one kind.
std::string class_of(const std::string& failure);

struct Shrunk {
  Case graph;
  Setting setting;
  std::string failure;
};
/// Returns the smallest case and the simplest setting that were found to fail in the same way.
Shrunk shrink(const Case& c, const Setting& setting, const std::string& failure);

}  // namespace treadle::graphs
