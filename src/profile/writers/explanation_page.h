// Writes the result of `treadle explain` as an HTML page.
#pragma once

#include <string>

#include "profile/model/explanation.h"

namespace treadle::profile {

/// Returns an HTML page that draws the graph. The page loads nothing from the network.
std::string explanation_to_html(const Explanation& explanation);

}  // namespace treadle::profile
