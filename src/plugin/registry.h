// The registered backends. They hold copies of all strings that plugins pass, so plugins may free theirs after registration.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "treadle/plugin.h"

namespace treadle::plugin {

struct Property {
  std::string name, device;
  bool enabled, inference_only, every_type;
  std::vector<std::string> op_types;  // in the form "domain:Type"; the domain is empty for ai.onnx
  size_t min_nodes;
};

struct Backend {
  std::string name;
  treadle_backend callbacks;
  std::vector<Property> properties;
};

/// Returns the backend that was last registered under this name; null if there is none.
std::shared_ptr<const Backend> find_backend(std::string_view name);

}  // namespace treadle::plugin
