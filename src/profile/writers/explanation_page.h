// `treadle explain` as one page.
#pragma once

#include <string>

#include "profile/model/explanation.h"

namespace treadle::profile {

/// The graph is drawn. The page needs no network.
std::string explanation_to_html(const Explanation& explanation);

}  // namespace treadle::profile
