#include "cli/train_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "cli/inputs.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

bool any_folder(const std::vector<std::string>& files) {
  return std::any_of(files.begin(), files.end(), [](const std::string& file) { return std::filesystem::is_directory(file); });
}
bool any_csv(const std::vector<std::string>& files) {
  return std::any_of(files.begin(), files.end(), [](const std::string& file) { return extension_of(file) == ".csv"; });
}

void check_data_options(const TrainArguments& a, const Model& model,
                        const std::function<void(const char*, bool, std::string_view)>& needs) {
  const std::vector<ValueInfo> inputs = model.inputs();
  const bool has_labels = train::label_form(a.trainer, model).dtype != DType::undefined;
  for (const char* option : {"--labels", "--validation-labels"}) needs(option, has_labels, "a loss that has labels");
  needs("--labels", !any_folder(a.data.paths), "files: the classes of a folder of pictures are its folders");
  needs("--features", any_csv(a.data.paths), "a .csv file in --data");
  needs("--scale", std::any_of(inputs.begin(), inputs.end(), [](const ValueInfo& info) { return is_float(info.dtype); }),
        "a model with a floating-point input");
  needs("--validation-labels", !a.validation.empty(), "--validation");
  needs("--validation-labels", !a.holds_out_a_fraction(), "files in --validation: a fraction of the data has the labels of those");
  needs("--validation-labels", !any_folder(a.validation), "files: the classes of a folder of pictures are its folders");
  needs("--seed", a.loader.shuffle || a.holds_out_a_fraction(), "samples to draw: --no-shuffle keeps their order, and none are held out");
}

}  // namespace

void check_options_have_effect(const TrainArguments& a, const Model& model) {
  auto needs = [&a](const char* option, bool is_met, std::string_view what) {
    if (!is_met && a.given.contains(option)) throw Error(ErrorCode::invalid_argument, fmt::format("{} needs {}", option, what));
  };
  check_data_options(a, model, needs);
  needs("--log-steps", !a.log.empty() || !a.tensorboard.empty(), "--log, --json or --tensorboard");
  for (const char* option : {"--communicator-deadline", "--bucket-bytes", "--reduction", "--shard-optimizer"})
    needs(option, a.trainer.communicator != nullptr, "several processes: start them with mpirun, or name a --communicator");
}

}  // namespace treadle::cli
