// Implements the command `treadle artifacts`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/terminal.h"
#include "cli/trainer_options.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

struct ArtifactsArguments {
  std::string model, output;
  train::TrainerOptions trainer;
};

int write(const ArtifactsArguments& a) {
  const train::Trainer trainer(Model::load(a.model), a.trainer);
  trainer.write_artifacts(a.output);
  for (const auto& entry : std::filesystem::directory_iterator(a.output))
    show("{:>10.1f} KB  {}\n", static_cast<double>(entry.file_size()) / 1e3, entry.path().string());
  return 0;
}

}  // namespace

Command add_artifacts(CLI::App& app) {
  app.description("Write what it takes to train a model: optimised graphs as ONNX files, and a checkpoint");
  auto a = std::make_shared<ArtifactsArguments>();
  app.footer(
      "Example:\n"
      "  treadle artifacts cnn.onnx --learning-rate 0.05 --momentum 0.9 -o cnn-artifacts\n"
      "  treadle train cnn-artifacts --data digits.csv --labels target --scale 0.0625 -o digits.onnx\n"
      "See docs/training.md.");
  app.add_option("model", a->model, "ONNX file")->required();
  app.add_option("-o,--output", a->output, "Folder to write the graphs and the checkpoint to")->required();
  add_trainer_options(app, a->trainer);
  add_session_options(app, a->trainer.session);
  return [a] { return write(*a); };
}

}  // namespace treadle::cli
