// Rejects options of `treadle train` that would have no effect together with the others.
#pragma once

#include "cli/train_loop.h"

namespace treadle::cli {

/// Checks the options. @throws Error(invalid_argument) that names an option which was given, and the option that it needs.
void check_options_have_effect(const TrainArguments& arguments, const Model& model);

}  // namespace treadle::cli
