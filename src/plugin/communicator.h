// Registers communicators (treadle/communicator.h) that plugins implement.
#pragma once

#include <memory>

#include "treadle/communicator.h"
#include "treadle/plugin.h"

namespace treadle::plugin {

/// Registers a type of communicators. @throws Error(invalid_argument) for a missing callback or an unknown size of the struct.
void register_communicator(const treadle_communicator_type& type);
/// Makes a communicator that uses a copy of `callbacks`. Its `release` is called when the last reference is dropped.
/// @throws Error(invalid_argument) under the conditions of register_communicator().
std::shared_ptr<Communicator> communicator_of(const treadle_communicator& callbacks);

}  // namespace treadle::plugin
