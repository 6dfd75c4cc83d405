// Communicators (treadle/communicator.h) that come from plugins.
#pragma once

#include <memory>

#include "treadle/communicator.h"
#include "treadle/plugin.h"

namespace treadle::plugin {

/// @throws Error(invalid_argument) for what is missing or of another size.
void register_communicator(const treadle_communicator_type& type);
/// Copies the description; its `release` is called when the last reference goes. @throws Error(invalid_argument) likewise.
std::shared_ptr<Communicator> communicator_of(const treadle_communicator& callbacks);

}  // namespace treadle::plugin
