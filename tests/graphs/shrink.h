// Makes failing cases small.
#pragma once

#include <string>

#include "tests/graphs/settings.h"

namespace treadle::graphs {

/// Judges and runs the case in a process of its own, so that a crash or a run without end is an outcome like others.
/// @return empty if all is well; "wrong: …", "error CODE: …", "crash: …", "hang: …"; or "invalid: …" if the case breaks ONNX's rules.
std::string run_apart(const Case& c, const Setting& setting);

/// What two failures that are the same have in common.
std::string class_of(const std::string& failure);

struct Shrunk {
  Case graph;
  Setting setting;
  std::string failure;
};
/// The smallest case and simplest setting it finds that fail in the same way.
Shrunk shrink(const Case& c, const Setting& setting, const std::string& failure);

}  // namespace treadle::graphs
