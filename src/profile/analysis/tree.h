// A run as a tree: phases of a step, layers of the model, nodes.
#pragma once

#include "profile/model/document.h"

namespace treadle::profile {

/// Layers of the nodes: a layer stands behind the one around it. Each has its time with and without the layers in it, by phase of a step.
/// @param nodes  of the document
Document layers_json(const Document& nodes);

}  // namespace treadle::profile
